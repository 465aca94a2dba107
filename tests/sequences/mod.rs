//! Recurrent layers over sequences of unknown and of different lengths, loops, and CTC.

mod branches;
mod ctc;
mod loops;
mod recurrent;
