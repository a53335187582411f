use thiserror::Error;

use super::Status;
use crate::wire::TargetError;

/// Why a head is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeadError {
    /// The head is longer than [`super::MAX_HEAD_LEN`].
    #[error("head is longer than 65536 bytes")]
    TooLong,
    /// The head has more than [`super::MAX_FIELDS`] fields.
    #[error("head has more than 128 fields")]
    TooManyFields,
    /// It does not follow the grammar.
    #[error("bad head")]
    Syntax(#[source] httparse::Error),
    /// The bytes were not one head from its beginning to its end.
    #[error("not exactly one head")]
    Incomplete,
    /// The host or port of the target is none.
    #[error("bad target")]
    Target(#[from] TargetError),
    /// The target of the request has none of the forms that a proxy serves.
    #[error("bad form of target")]
    TargetForm,
    /// An absolute target with a scheme other than `http`.
    #[error("unsupported scheme")]
    Scheme,
    /// More than one Host (RFC 9112, section 3.2).
    #[error("more than one Host")]
    Hosts,
    /// Content-Length and Transfer-Encoding together: the sign of a smuggled request.
    #[error("both Content-Length and Transfer-Encoding")]
    AmbiguousLength,
    /// Content-Length is no number.
    #[error("bad Content-Length")]
    BadLength,
    /// Several values of Content-Length that differ.
    #[error("differing values of Content-Length")]
    DifferingLengths,
    /// A transfer coding other than `chunked`.
    #[error("unsupported transfer coding")]
    Coding,
    /// Transfer-Encoding where it must not be: HTTP/1.0, or nothing in it, or chunked twice.
    #[error("bad Transfer-Encoding")]
    BadCoding,
    /// A response that switches protocols although the request did not ask for it.
    #[error("unasked switch of protocols")]
    UnaskedSwitch,
}

impl HeadError {
    /// The status that refuses the client's request. For responses it is always [`Status::BadGateway`].
    pub fn status(&self) -> Status {
        match self {
            Self::TooLong | Self::TooManyFields => Status::HeadTooLarge,
            Self::Scheme | Self::Coding => Status::NotImplemented,
            Self::Syntax(_)
            | Self::Incomplete
            | Self::Target(_)
            | Self::TargetForm
            | Self::Hosts
            | Self::AmbiguousLength
            | Self::BadLength
            | Self::DifferingLengths
            | Self::BadCoding
            | Self::UnaskedSwitch => Status::BadRequest,
        }
    }
}
