//! Plots as SVG text, drawn from numbers alone: no scripts, no fonts to load.

use std::fmt::Write;

/// Width of a plot in user units; the browser scales it.
const WIDTH: f64 = 760.0;
const LABELS: f64 = 290.0;
const VALUES: f64 = 90.0;
const ROW: f64 = 24.0;
const HEAD: f64 = 30.0;

/// One bar: a name, and the values of the rounds.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Its subject.
    pub name: String,
    /// One value per round, in any order; none at all draws no bar.
    pub values: Vec<f64>,
    /// End of the bar: mostly the median.
    pub middle: Option<f64>,
}

/// Text for the inside of an element or an attribute.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Bars that end at the middle value, with a dot for each round, on one scale from 0.
#[must_use]
pub fn bars(title: &str, digits: usize, bars: &[Bar]) -> String {
    let most = bars.iter().flat_map(|bar| bar.values.iter().chain(&bar.middle)).copied().fold(0.0, f64::max);
    let scale = if most > 0.0 { (WIDTH - LABELS - VALUES) / most } else { 0.0 };
    let height = HEAD + ROW * bars.len() as f64 + 8.0;
    let mut svg = open(WIDTH, height, title);
    for (at, bar) in bars.iter().enumerate() {
        let y = HEAD + ROW * at as f64;
        let middle = y + ROW / 2.0;
        let name = escape(&bar.name);
        line(
            &mut svg,
            &format!(
                r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{name}</text>"#,
                LABELS - 8.0,
                middle + 4.0
            ),
        );
        let Some(end) = bar.middle else {
            line(
                &mut svg,
                &format!(r#"<text x="{LABELS:.1}" y="{:.1}" class="faint">no figure</text>"#, middle + 4.0),
            );
            continue;
        };
        let (top, length) = (y + 4.0, end * scale);
        line(
            &mut svg,
            &format!(r#"<rect x="{LABELS:.1}" y="{top:.1}" width="{length:.1}" height="{:.1}"/>"#, ROW - 8.0),
        );
        for value in &bar.values {
            let x = LABELS + value * scale;
            line(&mut svg, &format!(r#"<circle cx="{x:.1}" cy="{middle:.1}" r="2.5"/>"#));
        }
        let furthest = bar.values.iter().copied().fold(end, f64::max) * scale;
        let x = LABELS + furthest + 8.0;
        line(&mut svg, &format!(r#"<text x="{x:.1}" y="{:.1}">{end:.digits$}</text>"#, middle + 4.0));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Points over two axes that start at 0.
#[must_use]
pub fn scatter(title: &str, axes: (&str, &str), points: &[(f64, f64, usize)], classes: &[&str]) -> String {
    const HEIGHT: f64 = 300.0;
    const LEFT: f64 = 60.0;
    const BOTTOM: f64 = 34.0;
    let most = |pick: fn(&(f64, f64, usize)) -> f64| points.iter().map(pick).fold(0.0, f64::max).max(1e-9);
    let (most_x, most_y) = (most(|point| point.0), most(|point| point.1));
    let (wide, high) = (WIDTH - LEFT - 20.0, HEIGHT - HEAD - BOTTOM);
    let mut svg = open(WIDTH, HEIGHT, title);
    let base = HEIGHT - BOTTOM;
    line(&mut svg, &format!(r#"<path d="M{LEFT} {HEAD}V{base}H{}" class="axis"/>"#, LEFT + wide));
    for part in [0.0, 0.5, 1.0] {
        let (x, y) = (LEFT + wide * part, base - high * part);
        line(
            &mut svg,
            &format!(
                r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle" class="faint">{}</text>"#,
                base + 14.0,
                short(most_x * part)
            ),
        );
        line(
            &mut svg,
            &format!(
                r#"<text x="{:.1}" y="{:.1}" text-anchor="end" class="faint">{}</text>"#,
                LEFT - 6.0,
                y + 4.0,
                short(most_y * part)
            ),
        );
    }
    let (name_x, name_y) = (escape(axes.0), escape(axes.1));
    line(
        &mut svg,
        &format!(r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{name_x}</text>"#, LEFT + wide, HEIGHT - 4.0),
    );
    // Beside the top of its axis: the title stands above it.
    line(&mut svg, &format!(r#"<text x="{:.1}" y="{:.1}">{name_y}</text>"#, LEFT + 6.0, HEAD + 10.0));
    for &(x, y, class) in points {
        let (x, y) = (LEFT + x / most_x * wide, base - y / most_y * high);
        line(&mut svg, &format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="1.8" class="c{class}"/>"#));
    }
    for (at, class) in classes.iter().enumerate() {
        let y = HEAD + 14.0 * at as f64;
        line(
            &mut svg,
            &format!(r#"<circle cx="{:.1}" cy="{:.1}" r="4" class="c{at}"/>"#, WIDTH - 170.0, y - 4.0),
        );
        line(&mut svg, &format!(r#"<text x="{:.1}" y="{y:.1}">{}</text>"#, WIDTH - 160.0, escape(class)));
    }
    svg.push_str("</svg>\n");
    svg
}

fn short(value: f64) -> String {
    if value >= 100.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn open(width: f64, height: f64, title: &str) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <text x=\"4\" y=\"16\" font-weight=\"bold\">{title}</text>\n"
    )
}

/// In each plot, so that it also stands alone as a file.
const STYLE: &str = "text{fill:#222}rect{fill:#7aa6d8}circle{fill:#1d4f86}.axis{fill:none;stroke:#888}.faint{fill:#777}\
    circle.c0{fill:#1d4f86}circle.c1{fill:#c2570c}circle.c2{fill:#2f7d32}circle.c3{fill:#8a3ffc}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}.faint{fill:#999}circle{fill:#cfe3ff}rect{fill:#3f6ea5}}";

fn line(svg: &mut String, text: &str) {
    // Writing to a string does not fail.
    writeln!(svg, "{text}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_axis_is_below_the_title() {
        let svg = scatter("payload by time", ("s", "bytes"), &[(1.0, 2.0, 0)], &["up"]);
        let line = svg.lines().find(|line| line.contains(">bytes<")).unwrap();
        let y = line.split("y=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(y.parse::<f64>().unwrap() >= 16.0 + 12.0, "{line}");
    }

    #[test]
    fn bars_share_a_scale_and_text_is_escaped() {
        let bar =
            |name: &str, values: &[f64], middle| Bar { name: name.into(), values: values.into(), middle };
        let svg = bars(
            "CPU <ns>",
            1,
            &[bar("a&b", &[5.0, 10.0], Some(10.0)), bar("half", &[5.0], Some(5.0)), bar("gone", &[], None)],
        );
        assert!(svg.contains("CPU &lt;ns&gt;") && svg.contains("a&amp;b") && !svg.contains("<ns>"));
        assert!(svg.contains(r#"width="380.0""#) && svg.contains(r#"width="190.0""#), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("no figure") && svg.contains(">10.0<"));
    }

    #[test]
    fn nothing_is_drawn_without_numbers() {
        assert!(bars("empty", 0, &[]).ends_with("</svg>\n"));
        let svg = scatter("none", ("x", "y"), &[], &["a"]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let svg = bars("zero", 0, &[Bar { name: "z".into(), values: vec![0.0], middle: Some(0.0) }]);
        assert!(!svg.contains("NaN"));
    }
}
