//! The way from a local proxy to the site, and the bytes that go over it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::site::{self, Pattern, Site};
use super::{CHUNK, Load};
use crate::path::{Entry, Path};

/// Longest wait for a single answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A local SOCKS5 proxy and the site behind it.
pub(super) struct Way<'a> {
    /// Address of the proxy.
    pub(super) proxy: SocketAddr,
    pub(super) site: &'a Site,
}

impl Way<'_> {
    fn path(&self) -> Path {
        Path { address: self.proxy, entry: Entry::Socks5, target: self.site.address }
    }

    /// Milliseconds until the first byte of the site's page.
    pub(super) fn first_byte(&self) -> Result<f64> {
        let begin = Instant::now();
        let mut stream = self.path().dial(PATIENCE)?;
        write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\n\r\n", self.site.address)?;
        let mut byte = [0];
        stream.read_exact(&mut byte).context("no answer")?;
        let took = begin.elapsed();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
        ensure!(rest.ends_with(b"</html>\n"), "the page is cut");
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Bytes from the site, compared, and their time.
    pub(super) fn download(&self, load: &Load, progress: &dyn Fn(u64)) -> Result<(u64, Duration)> {
        let mut stream = self.path().dial(PATIENCE)?;
        let (size, site) = (load.size, self.site.address);
        let head = format!("GET /bytes/{size} HTTP/1.1\r\nHost: {site}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        site::read_head(&mut stream)?;
        let (pattern, mut chunk) = (Pattern::new(), vec![0; CHUNK]);
        let (begin, mut bytes) = (Instant::now(), 0);
        while bytes < load.size && begin.elapsed() < load.limit {
            let len = stream.read(&mut chunk)?;
            ensure!(len > 0, "the stream is cut after {bytes} bytes");
            ensure!(pattern.matches(bytes, &chunk[..len]), "wrong bytes after {bytes}");
            bytes += len as u64;
            progress(len as u64);
        }
        Ok((bytes, begin.elapsed()))
    }

    /// Bytes that the site got, compared there, and their time.
    pub(super) fn upload(&self, load: &Load, progress: &dyn Fn(u64)) -> Result<(u64, Duration)> {
        let mut stream = self.path().dial(PATIENCE)?;
        let (size, site) = (load.size, self.site.address);
        let head = format!("POST /upload HTTP/1.1\r\nHost: {site}\r\nContent-Length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let (pattern, before) = (Pattern::new(), self.site.uploaded());
        let (begin, mut sent) = (Instant::now(), 0);
        while sent < load.size && begin.elapsed() < load.limit {
            let most = usize::try_from(load.size - sent).unwrap_or(usize::MAX).min(CHUNK);
            let piece = pattern.piece(sent, most);
            stream.write_all(piece)?;
            sent += piece.len() as u64;
            progress(piece.len() as u64);
        }
        if sent == load.size {
            answer(&mut stream).context("the site's answer")?;
        }
        let (bytes, took) = (self.site.uploaded() - before, begin.elapsed());
        ensure!(!self.site.saw_wrong_bytes(), "the site got wrong bytes");
        Ok((bytes, took))
    }
}

/// The end of an upload: the site says whether every byte was right.
fn answer(stream: &mut TcpStream) -> Result<()> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200 "), "{}", text.lines().next().unwrap_or("nothing"));
    Ok(())
}
