//! Shadowsocks against recorded exchanges, and both ends face to face.

mod faces;
mod packets;
mod properties;
mod speed;
mod streams;
mod support;
mod vectors;
