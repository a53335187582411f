use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroize;

/// A user and password as a local client sent them: bytes, not text, since neither SOCKS nor HTTP says more.
///
/// `Debug` shows no password, and the memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: Vec<u8>,
    password: Vec<u8>,
}

impl Credentials {
    /// Takes copies of `user` and `password`.
    pub fn new(user: &[u8], password: &[u8]) -> Self {
        Self { user: user.into(), password: password.into() }
    }

    /// The user, as sent.
    pub fn user(&self) -> &[u8] {
        &self.user
    }

    /// The password, as sent.
    pub fn password(&self) -> &[u8] {
        &self.password
    }

    /// Compares with an expected pair; how long that takes depends on the lengths only.
    pub fn matches(&self, user: &[u8], password: &[u8]) -> bool {
        let user = verify_slices_are_equal(&self.user, user).is_ok();
        let password = verify_slices_are_equal(&self.password, password).is_ok();
        user & password
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        self.user.zeroize();
        self.password.zeroize();
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user.escape_ascii().to_string())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching() {
        let pair = Credentials::new(b"user", b"secret");
        assert!(pair.matches(b"user", b"secret"));
        assert!(!pair.matches(b"user", b"Secret"));
        assert!(!pair.matches(b"use", b"secret"));
        assert!(!pair.matches(b"", b""));
        assert!(!format!("{pair:?}").contains("secret"));
    }
}
