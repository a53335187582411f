//! ShadowsocksR and GoQuiet against recorded exchanges, and both ends face to face.

mod faces;
mod over_tcp;
mod quiet;
mod refusals;
mod support;
mod udp;
mod vectors;
