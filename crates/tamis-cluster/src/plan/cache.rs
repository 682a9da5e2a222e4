//! What a server keeps of the tokens of a sequence, by a model's `config.json`.

use serde_json::Value;

/// The cache of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Numbers of a token in a layer.
    pub numbers: u64,
    /// Parts that the GPUs of a server share it out in: key heads, or 1 where each has all of it.
    pub parts: u64,
    /// Layers that keep every token.
    pub whole_layers: u64,
    /// Layers that keep the last `window` tokens.
    pub windowed_layers: u64,
    /// Tokens that a layer with a window sees.
    pub window: u64,
}

impl CacheShape {
    /// Of layers that keep the keys and values of all tokens.
    pub fn of_heads(num_layers: u64, kv_heads: u64, head_dim: u64) -> Self {
        Self {
            numbers: 2 * kv_heads * head_dim,
            parts: kv_heads,
            whole_layers: num_layers,
            windowed_layers: 0,
            window: 0,
        }
    }

    /// With what the part of `config.json` for text says beside these sizes.
    ///
    /// Multi-head latent attention (`kv_lora_rank`; DeepSeek-V2, arXiv:2405.04434, equation 9 and section
    /// 2.1.3) keeps `kv_lora_rank + qk_rope_head_dim` numbers of a token in a layer, for all heads together:
    /// vLLM's `MLAAttentionSpec`, each GPU with all of it. MiniCPM3 is served with its heads unfolded. The
    /// indexer of DeepSeek-V3.2, whose cache comes on top, is not counted.
    ///
    /// Which layers have a window is what the configuration classes of transformers 5.23 make of
    /// `sliding_window`, `layer_types`, `use_sliding_window`, `max_window_layers` and
    /// `sliding_window_pattern`. A layer whose kind is not known to have one counts as one that keeps every
    /// token.
    #[must_use]
    pub fn with_config(mut self, text: &Value) -> Self {
        let number = |key: &str| text.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
        let kind = text.get("model_type").and_then(Value::as_str).unwrap_or("");
        if let (Some(latent), Some(rope)) = (number("kv_lora_rank"), number("qk_rope_head_dim"))
            && kind != "minicpm3"
        {
            (self.numbers, self.parts) = (latent + rope, 1);
        }
        if let Some(window) = number("sliding_window") {
            self.window = window;
            self.windowed_layers = windowed_layers(text, kind, self.whole_layers);
            self.whole_layers -= self.windowed_layers;
        }
        self
    }

    /// Numbers of a sequence of so many tokens, on all GPUs of a server.
    ///
    /// `(whole_layers tokens + windowed_layers min(window, tokens)) numbers`: vLLM's `FullAttentionSpec` and
    /// `SlidingWindowSpec`, without what rounding to blocks and the tokens of a pass over a prompt add. Where
    /// `has_windows` is false all layers keep every token, as in engines that do not forget.
    pub fn of_sequence(&self, tokens: u64, has_windows: bool) -> u64 {
        let seen = if has_windows { tokens.min(self.window) } else { tokens };
        (self.whole_layers * tokens + self.windowed_layers * seen) * self.numbers
    }
}

/// Number of layers with a window, of a model that has one.
fn windowed_layers(text: &Value, kind: &str, num_layers: u64) -> u64 {
    let number = |key: &str| text.get(key).and_then(Value::as_u64);
    // Its layers without a window have heads of another width.
    if kind.starts_with("gemma4") {
        return 0;
    }
    // Of these a window is off unless it is turned on.
    let is_off = ["qwen2", "qwen3", "smollm3"].iter().any(|family| kind.starts_with(family));
    if !text.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(!is_off) {
        return 0;
    }
    if let Some(types) = text.get("layer_types").and_then(Value::as_array) {
        let types = types.iter().take(usize::try_from(num_layers).unwrap_or(usize::MAX));
        return types.filter(|kind| kind.as_str() == Some("sliding_attention")).count() as u64;
    }
    // All but every such layer.
    let pattern = |every: u64| num_layers - num_layers / every.max(1);
    let first_ones = number("max_window_layers").unwrap_or(num_layers).min(num_layers);
    match kind {
        "mistral" | "ministral" | "mixtral" | "phi3" | "starcoder2" | "qwen3_moe" => num_layers,
        "qwen2_moe" => first_ones.div_ceil(2),
        "gemma2" | "gpt_oss" => pattern(2),
        "olmo3" => pattern(4),
        "cohere2" | "exaone4" => pattern(number("sliding_window_pattern").unwrap_or(4)),
        "gemma3n_text" => pattern(5),
        _ if kind.starts_with("gemma3") => pattern(number("sliding_window_pattern").unwrap_or(6)),
        _ if kind.starts_with("qwen2") || kind.starts_with("qwen3") => num_layers - first_ones,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Layers that keep every token, and layers with a window.
    fn layers(mut config: Value, num_layers: u64) -> (u64, u64) {
        config["sliding_window"] = json!(config.get("sliding_window").unwrap_or(&json!(512)));
        let shape = CacheShape::of_heads(num_layers, 2, 4).with_config(&config);
        (shape.whole_layers, shape.windowed_layers)
    }

    #[test]
    fn latent_attention_keeps_one_vector_a_token() {
        // DeepSeek-V3 keeps 70,272 bytes of a token in bf16, whatever the number of GPUs.
        let config = json!({"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64});
        let shape = CacheShape::of_heads(61, 128, 56).with_config(&config);
        assert_eq!((2 * shape.of_sequence(1, true), shape.parts), (70_272, 1));
        let unfolded = json!({"model_type": "minicpm3", "kv_lora_rank": 256, "qk_rope_head_dim": 32});
        assert_eq!(CacheShape::of_heads(62, 40, 64).with_config(&unfolded), CacheShape::of_heads(62, 40, 64));
    }

    #[test]
    fn layers_with_a_window_keep_no_more_than_it() {
        // Gemma 3 1B: 26 layers, of which each sixth keeps all.
        let gemma = json!({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6});
        let shape = CacheShape::of_heads(26, 1, 256).with_config(&gemma);
        assert_eq!((shape.whole_layers, shape.windowed_layers), (4, 22));
        assert_eq!(shape.of_sequence(1000, true), 2 * 256 * (4 * 1000 + 22 * 512));
        assert_eq!(shape.of_sequence(100, true), 2 * 256 * 26 * 100);
        assert_eq!(shape.of_sequence(1000, false), 2 * 256 * 26 * 1000);
    }

    /// As the configuration classes of transformers have it where `layer_types` is not written.
    #[test]
    fn each_family_says_in_its_way_which_layers_have_a_window() {
        for (config, num_layers, expected) in [
            (json!({"model_type": "mistral"}), 32, (0, 32)),
            (json!({"model_type": "mistral", "sliding_window": null}), 32, (32, 0)),
            (json!({"model_type": "gemma2"}), 26, (13, 13)),
            (json!({"model_type": "gemma3_text"}), 26, (4, 22)),
            (json!({"model_type": "cohere2", "sliding_window_pattern": 4}), 10, (2, 8)),
            (json!({"model_type": "gpt_oss"}), 24, (12, 12)),
            // Qwen2.5 has the keys, and no window.
            (
                json!({"model_type": "qwen2", "use_sliding_window": false, "max_window_layers": 28}),
                28,
                (28, 0),
            ),
            (json!({"model_type": "qwen2", "max_window_layers": 21}), 28, (28, 0)),
            (
                json!({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 21}),
                28,
                (21, 7),
            ),
            (
                json!({"model_type": "qwen2_moe", "use_sliding_window": true, "max_window_layers": 5}),
                8,
                (5, 3),
            ),
            (json!({"model_type": "qwen3_moe", "use_sliding_window": true}), 48, (0, 48)),
            (
                json!({"model_type": "gemma2", "layer_types": ["full_attention", "sliding_attention"]}),
                2,
                (1, 1),
            ),
            (json!({"model_type": "x", "layer_types": ["sliding_attention", "linear_attention"]}), 2, (1, 1)),
            // What is not known keeps every token.
            (json!({"model_type": "x"}), 2, (2, 0)),
            (json!({"model_type": "gemma4_text", "layer_types": ["sliding_attention"]}), 1, (1, 0)),
        ] {
            assert_eq!(layers(config.clone(), num_layers), expected, "{config}");
        }
    }
}
