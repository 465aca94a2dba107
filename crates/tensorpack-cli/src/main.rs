//! The command `tensorpack`: gets plugins for the XLA engine, and says what a machine has.

mod doctor;
mod install;
mod nvidia;
mod packages;

use tensorpack::{Error, Result};

const HELP: &str = "\
tensorpack plugin install cpu|cuda12|cuda13 [--dry-run]
    gets a plugin for the XLA engine with pip; --dry-run says what would be fetched, and where it would be put
tensorpack doctor
    says which engines and devices there are, and how to get what is missing";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["plugin", "install", "--dry-run", name] | ["plugin", "install", name, "--dry-run"] => {
            install::plan(packages::named(name)?)
        }
        ["plugin", "install", name] => install::install(packages::named(name)?),
        ["doctor"] => {
            doctor::examine();
            Ok(())
        }
        [] | ["--help" | "-h" | "help"] => {
            println!("{HELP}");
            Ok(())
        }
        _ => {
            let why = format!("tensorpack {} is no command", words.join(" "));
            Err(HELP.lines().fold(Error::argument(why), Error::note))
        }
    }
}
