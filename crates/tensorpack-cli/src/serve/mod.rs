//! `tensorpack serve`: an HTTP server for a model, with the Open Inference Protocol, version 2.

mod infer_request;
mod infer_response;
mod metrics;
mod numbers;
mod request_error;
mod router;
mod served_model;
mod server;
mod tensor_type;

use clap::Args;
use router::Router;
use served_model::ServedModel;
use server::Server;
use std::io::{Write, stdout};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tensorpack::predict::ExportedModel;
use tensorpack::prelude::{Device, SessionOptions};
use tensorpack::{Error, Result};
use tokio::net::TcpListener;

/// The threads that read and write requests. The model has threads of its own.
const IO_THREADS: usize = 2;

/// The arguments of `tensorpack serve`.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The model: a file that `OfflinePredictor::export` wrote, or an ONNX file.
    model: PathBuf,
    /// The port to listen on; 0 for any free one.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The address to listen on; 0.0.0.0 for all of this host.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// The name of the model in requests (default: the name of the file, without its extension).
    #[arg(long)]
    name: Option<String>,
    /// The device that runs the model.
    #[arg(long)]
    device: Option<Device>,
    /// The number of threads that run the model (default: one per core).
    #[arg(long)]
    threads: Option<usize>,
    /// Do not fold batch normalization into the weights before it. Folded, a model is faster, and
    /// its outputs are the same except for rounding.
    #[arg(long)]
    no_fold: bool,
    /// Multiply 8-bit integers in large layers, which is faster on CPUs with AVX-512 VNNI and changes
    /// the outputs a little.
    #[arg(long)]
    int8: bool,
    /// The most examples that run together.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_batch_size: u16,
    /// The longest body of a request, in bytes. A longer one is answered with status 413.
    #[arg(long, default_value_t = 32 << 20, value_name = "BYTES")]
    max_body_bytes: usize,
    /// The most inference requests at a time. Others are answered with status 503.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_concurrent: u16,
    /// The most open connections. Others wait until one is closed.
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: u16,
    /// The longest time in seconds that a request may take to arrive (status 408), and then to be
    /// answered (status 504).
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    timeout: f64,
}

impl ServeArgs {
    /// Loads the model and serves it until SIGTERM or SIGINT.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let timeout = Duration::try_from_secs_f64(self.timeout).ok().filter(|t| !t.is_zero());
        let timeout = timeout
            .ok_or_else(|| Error::argument(format!("--timeout {} is not a positive time", self.timeout)))?;
        let batch = usize::from(self.max_batch_size);
        let options = SessionOptions {
            device: self.device.unwrap_or_default(),
            threads: self.threads,
            // Every batch size has a program.
            programs: batch + 16,
            ..SessionOptions::default()
        };
        let mut exported = ExportedModel::load_with(&self.model, options)?;
        if !self.no_fold {
            exported = exported.folded().map_err(|e| e.note("serve it unchanged with --no-fold"))?;
        }
        if self.int8 {
            exported = exported.int8()?;
        }
        let name = self.model_name()?;
        let model = ServedModel::new(exported, name, batch, self.max_concurrent.into())?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(IO_THREADS).enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind((self.host, self.port)).await.map_err(|e| {
                Error::from(e).within(format!("cannot listen on {}:{}", self.host, self.port))
            })?;
            let address = listener.local_addr()?;
            let batching = match model.batch() {
                1 => "one request at a time".to_string(),
                n => format!("batches of up to {n}"),
            };
            writeln!(stdout(), "serving {} at http://{address} ({batching})", model.name())?;
            stdout().flush()?;
            let router = Router::new(model, self.max_body_bytes, self.max_concurrent.into(), timeout);
            Server::new(Arc::new(router), self.max_connections.into(), timeout).run(listener).await
        })
    }

    /// Returns the name of the model in requests.
    fn model_name(&self) -> Result<String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        match &self.name {
            Some(name) if name.is_empty() || !name.chars().all(is_plain) => {
                let why = format!("--name {name:?} is not a name of letters, digits and . _ -");
                Err(Error::argument(why))
            }
            Some(name) => Ok(name.clone()),
            None => {
                let stem = self.model.file_stem().unwrap_or_default().to_string_lossy();
                Ok(stem.chars().map(|c| if is_plain(c) { c } else { '_' }).collect())
            }
        }
    }
}
