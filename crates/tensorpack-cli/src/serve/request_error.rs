//! Errors of requests, as the protocol returns them.

use hyper::StatusCode;
use tensorpack::{Error, ErrorKind};

/// The status and the message that a request is answered with.
#[derive(Debug)]
pub(super) struct RequestError {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl RequestError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> RequestError {
        RequestError { status, message: message.into() }
    }

    /// Returns the error of a request that does not follow the protocol or match the model.
    pub(super) fn bad(message: impl Into<String>) -> RequestError {
        RequestError::new(StatusCode::BAD_REQUEST, message)
    }
}

/// The error of a prediction.
impl From<Error> for RequestError {
    fn from(e: Error) -> RequestError {
        let status = match e.kind() {
            ErrorKind::Shape
            | ErrorKind::DType
            | ErrorKind::Argument
            | ErrorKind::Data
            | ErrorKind::NotFinite
            | ErrorKind::Overflow => StatusCode::BAD_REQUEST,
            // Too many requests at a time, or too large ones.
            ErrorKind::Deadline | ErrorKind::Memory => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        RequestError::new(status, e.message())
    }
}
