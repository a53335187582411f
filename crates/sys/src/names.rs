//! The name services of the C library: where it looks hosts, users and groups up.

/// Makes a statically linked glibc look hosts up in `/etc/hosts` and DNS, and users and groups in `/etc/passwd` and
/// `/etc/group`. Without this it would load the modules of `/etc/nsswitch.conf` at run time, and those of another glibc
/// may end the process. Does nothing in a program that is linked dynamically, or to another C library.
///
/// To be called before the first look-up.
pub fn pin_services() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    for (database, services) in SERVICES {
        // SAFETY: both texts end in NUL and live for ever. glibc keeps a copy under a lock of its own.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

/// The databases that adit asks for, with the services that are built into the C library.
#[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
const SERVICES: [(&std::ffi::CStr, &std::ffi::CStr); 4] =
    [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files"), (c"initgroups", c"files")];

#[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
unsafe extern "C" {
    /// Of `<nss.h>`: sets the services of one database for the process.
    fn __nss_configure_lookup(
        database: *const std::ffi::c_char,
        services: *const std::ffi::c_char,
    ) -> std::ffi::c_int;
}
