use crate::common::vllm::versions;
use _codec::protocol::vllm::Layout;
use serde_json::Value;

fn selected(version: &str) -> String {
    Layout::select(version).unwrap().layout.version().to_string()
}

#[test]
fn every_layout_has_the_fields_of_its_version() {
    let versions = versions();
    assert_eq!(Layout::all().len(), versions.len());
    for (name, structs, layout) in versions {
        assert_eq!(layout.version().to_string(), name);
        let names = |key: &str| -> Vec<String> {
            let fields = structs[key].as_array().unwrap();
            fields.iter().map(|field: &Value| field.as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(layout.request_fields().collect::<Vec<_>>(), names("EngineCoreRequest"), "{name}");
        assert_eq!(layout.output_fields().collect::<Vec<_>>(), names("EngineCoreOutput"), "{name}");
        assert_eq!(layout.batch_fields().collect::<Vec<_>>(), names("EngineCoreOutputs"), "{name}");
        // A version that has the end-of-sequence id in one place has it in no other.
        let in_sampling = names("SamplingParams").contains(&"_eos_token_id".to_owned());
        assert_ne!(in_sampling, names("EngineCoreRequest").contains(&"eos_token_id".to_owned()), "{name}");
    }
}

#[test]
fn suffixes_and_patch_releases_make_no_difference() {
    for (version, layout) in [
        ("0.32.0", "0.32.0"),
        ("0.32.0+cpu", "0.32.0"),
        ("v0.32.0", "0.32.0"),
        ("0.33.1rc1.dev5", "0.33.0"),
        ("0.33.0rc1", "0.33.0"),
        ("0.24.7.post1+cu128", "0.24.0"),
        ("0.20.0", "0.20.2"),
        ("0.22.0", "0.22.1"),
        ("0.20", "0.20.2"),
        ("0.12.0", "0.12.0"),
        (" 0.31.0\n", "0.31.0"),
    ] {
        let selection = Layout::select(version).unwrap();
        assert_eq!((selected(version).as_str(), selection.warning), (layout, None), "{version}");
    }
}

#[test]
fn a_release_in_between_has_the_nearest_lower_layout() {
    for (version, layout) in [("0.13.0", "0.12.0"), ("0.21.4", "0.20.2"), ("0.29.0.dev1", "0.28.0")] {
        assert_eq!(selected(version), layout);
        assert_eq!(Layout::select(version).unwrap().warning, None);
    }
}

#[test]
fn a_newer_release_has_the_newest_layout_and_a_warning() {
    for version in ["0.34.0", "0.100.0", "1.0.0", "1.2.3+cu130"] {
        let selection = Layout::select(version).unwrap();
        assert_eq!(selection.layout, Layout::all().last().unwrap());
        let warning = selection.warning.unwrap();
        assert!(warning.contains(version) && warning.contains("0.33.0"), "{warning}");
    }
}

#[test]
fn an_older_release_and_what_is_none_are_refused() {
    for version in ["0.11.2", "0.9.0.1", "0.1.dev1+gabc"] {
        let refusal = Layout::select(version).unwrap_err().to_string();
        assert_eq!(refusal, format!("vLLM {version} is older than 0.12.0, the oldest whose wire is known"));
    }
    for version in ["", "main", "0", "0.", ".32", "-1.2", "99999999999.1", "tokenspeed-0.1.1"] {
        let refusal = Layout::select(version).unwrap_err().to_string();
        assert_eq!(refusal, format!("{version:?} is not a version of vLLM, such as 0.32.0"));
    }
}
