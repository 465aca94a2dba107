//! `tensorpack dashboard`: a web page that shows runs while they train.

use clap::Args;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use tensorpack::Result;
use tensorpack_dashboard::{Dashboard, Options};

/// The arguments of `tensorpack dashboard`.
#[derive(Args)]
pub(crate) struct DashboardArgs {
    /// The folders with the log directories of runs. Defaults to train_log, or this folder.
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// The port to listen at. 0 takes a free one.
    #[arg(long, default_value_t = 6007)]
    port: u16,
    /// The address to listen at. Any other than a loopback address needs the token in the link
    /// that is printed.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,
    /// Accept requests for this host name, too. May be repeated.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Let the page stop runs and change their hyper-parameters. The page then needs the token in
    /// the link that is printed.
    #[arg(long)]
    allow_control: bool,
}

impl DashboardArgs {
    /// Prints the address, and serves the page until the process ends.
    pub(crate) fn run(self, out: &mut impl Write) -> Result<()> {
        let mut folders = self.folders;
        if folders.is_empty() {
            let usual = Path::new("train_log");
            folders.push(if usual.is_dir() { usual } else { Path::new(".") }.to_path_buf());
        }
        let options = Options {
            folders,
            host: self.host,
            port: self.port,
            allowed_hosts: self.allow_host,
            allow_control: self.allow_control,
            ..Options::default()
        };
        let dashboard = Dashboard::bind(&options)?;
        writeln!(out, "dashboard at {}", dashboard.url())?;
        out.flush()?;
        dashboard.run()
    }
}
