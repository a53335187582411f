use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/clash");
const FILE: &str = include_str!("../../../../../testdata/clash/config.yaml");

#[test]
fn the_recorded_file() {
    let setup = load("config.yaml", FILE, &Path::new(FOLDER).join("geo")).unwrap();
    assert_eq!(setup.config.inbounds.len(), 8);
    let want: Vec<serde_json::Value> = {
        let text = std::fs::read_to_string(format!("{FOLDER}/decisions.json")).unwrap();
        let all: serde_json::Value = serde_json::from_str(&text).unwrap();
        all["rules"].as_array().unwrap().clone()
    };
    // Each rule of the main list is shown as mihomo shows it; lists of sub-rules by the rules within.
    for rule in &want {
        let index = usize::try_from(rule["index"].as_u64().unwrap()).unwrap();
        let found = setup.origins.iter().flatten().find(|o| o.index == index && o.list.is_none()).unwrap();
        assert_eq!(
            (found.kind, &*found.payload),
            (rule["type"].as_str().unwrap(), rule["payload"].as_str().unwrap(),)
        );
        let target = found.sub_rule.as_deref().unwrap_or(&found.target);
        assert_eq!(target, rule["proxy"].as_str().unwrap());
    }
}
