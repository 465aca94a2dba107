//! Sources of samples.

mod random_access;
mod from_list;
mod from_fn;
mod from_iter;
mod from_channel;
mod fake_data;

pub use fake_data::FakeData;
pub use from_channel::FromChannel;
pub use from_fn::FromFn;
pub use from_iter::FromIter;
pub use from_list::FromList;
pub use random_access::RandomAccess;
