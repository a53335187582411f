//! The files of a dashboard. Nothing outside its folder is served, by any name or link.

use std::fs;
use std::path::{Component, Path, PathBuf};

use adit_net::web::live::{Given, LiveResponse};

use super::text::decoded;

/// Longest file in bytes.
const MAX_FILE: u64 = 64 << 20;

/// Types by the end of a name.
const TYPES: [(&str, &str); 14] = [
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("json", "application/json"),
    ("webmanifest", "application/manifest+json"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("ico", "image/x-icon"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("wasm", "application/wasm"),
    ("txt", "text/plain; charset=utf-8"),
];

/// A file of the folder `root`; `path` is the part behind `/ui/`, with its escapes.
pub(crate) fn file(root: &Path, path: &str) -> Option<Given> {
    let path = find(root, path)?;
    let kind = path.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase);
    let kind = kind.and_then(|end| TYPES.iter().find(|(known, _)| *known == end));
    let is_page = kind.is_some_and(|(end, _)| *end == "html");
    // The names of the other files change with their contents, or are asked for again after a while.
    let cache = if is_page { "no-cache" } else { "max-age=3600" };
    let fields = vec![
        ("Content-Type", kind.map_or("application/octet-stream", |(_, kind)| kind).to_owned()),
        ("Cache-Control", cache.to_owned()),
        ("X-Content-Type-Options", "nosniff".to_owned()),
    ];
    let body = adit_net::files::read(&path, MAX_LEN).ok()?;
    Some(Given::Whole(LiveResponse { status: 200, fields, body }))
}

/// Longest file of a dashboard, in bytes.
const MAX_LEN: usize = 64 << 20;

/// The file behind all links, if it is a plain one inside the folder.
fn find(root: &Path, path: &str) -> Option<PathBuf> {
    let path = decoded(path)?;
    let path = Path::new(&path);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, 0 | b'\\')) {
        return None;
    }
    let root = fs::canonicalize(root).ok()?;
    let mut found = fs::canonicalize(root.join(path)).ok()?;
    if found.is_dir() {
        found = fs::canonicalize(found.join("index.html")).ok()?;
    }
    let data = fs::metadata(&found).ok()?;
    (found.starts_with(&root) && data.is_file() && data.len() <= MAX_FILE).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_the_folder_is_served() {
        let base = std::env::temp_dir().join(format!("adit-ui-{}", std::process::id()));
        let root = base.join("ui");
        fs::create_dir_all(root.join("assets")).unwrap();
        fs::write(base.join("secret"), "no").unwrap();
        fs::create_dir_all(base.join("ui-other")).unwrap();
        fs::write(base.join("ui-other/x"), "no").unwrap();
        fs::write(root.join("index.html"), "page").unwrap();
        fs::write(root.join("assets/a b.js"), "code").unwrap();
        std::os::unix::fs::symlink(base.join("secret"), root.join("link")).unwrap();
        std::os::unix::fs::symlink("..", root.join("up")).unwrap();
        std::os::unix::fs::symlink("index.html", root.join("inner")).unwrap();
        for (path, is_there) in [
            ("", true),
            ("index.html", true),
            ("inner", true),
            ("assets/a%20b.js", true),
            ("assets", false),
            ("../secret", false),
            ("%2e%2e/secret", false),
            ("%2e%2e%2fsecret", false),
            ("..%5csecret", false),
            ("assets/../../secret", false),
            ("/etc/passwd", false),
            ("%2fetc%2fpasswd", false),
            ("link", false),
            ("up/secret", false),
            ("up/ui/index.html", true),
            ("../ui-other/x", false),
            ("index.html%00", false),
            ("%ff", false),
            ("missing", false),
        ] {
            assert_eq!(file(&root, path).is_some(), is_there, "{path}");
        }
        let Some(Given::Whole(whole)) = file(&root, "assets/a%20b.js") else { panic!() };
        assert_eq!((whole.body.as_slice(), whole.fields[0].1.as_str()), (&b"code"[..], TYPES[1].1));
        fs::remove_dir_all(base).unwrap();
    }
}
