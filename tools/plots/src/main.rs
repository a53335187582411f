//! Draws every SVG file of a folder as a PNG file beside it, at twice its size.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Pixels per unit of the drawing: sharp on today's screens.
const SCALE: f32 = 2.0;

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir] = args.as_slice() else { bail!("a folder with SVG files expected") };
    let options = Options { fontdb: Arc::new(fonts()?), ..Options::default() };
    let entries = std::fs::read_dir(dir).with_context(|| format!("list {}", Path::new(dir).display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let mut count = 0;
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "svg")) {
        draw(path, &options).with_context(|| format!("draw {}", path.display()))?;
        count += 1;
    }
    ensure!(count > 0, "no SVG file in {}", Path::new(dir).display());
    println!("png: {count} plots in {}", Path::new(dir).display());
    Ok(())
}

/// The fonts of the system. `sans-serif` is not defined anywhere: one of the usual, or else the first.
fn fonts() -> Result<fontdb::Database> {
    const USUAL: [&str; 5] = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica"];
    let mut fonts = fontdb::Database::new();
    fonts.load_system_fonts();
    let names: Vec<String> =
        fonts.faces().flat_map(|face| face.families.iter().map(|(name, _)| name.clone())).collect();
    let usual = USUAL.into_iter().find(|name| names.iter().any(|known| known == name));
    let family = usual.or(names.first().map(String::as_str));
    let family =
        family.context("no fonts on this system, and plots have text\nhint: install DejaVu Sans")?.to_owned();
    fonts.set_sans_serif_family(family);
    Ok(fonts)
}

fn draw(path: &Path, options: &Options<'_>) -> Result<()> {
    let tree = Tree::from_data(&std::fs::read(path)?, options)?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("a drawing of no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("a drawing too large")?;
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    Ok(pixels.save_png(path.with_extension("png"))?)
}
