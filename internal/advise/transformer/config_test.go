package transformer

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

func mustParse(t *testing.T, text string) Model {
	t.Helper()
	m, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

const plain = `"hidden_size":4096,"intermediate_size":11008,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000`

// Each way in which a config.json says what its layers are.
func TestKinds(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{`{"num_hidden_layers":8}`, "8 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"mistral","sliding_window":4096}`, "8 with a sliding window of 4096 tokens"},
		{`{"num_hidden_layers":8,"model_type":"mistral","sliding_window":null}`, "8 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"phi3","sliding_window":4096,"max_position_embeddings":4096}`, "8 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"qwen2","sliding_window":4096,"use_sliding_window":false,"max_window_layers":4}`, "8 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"qwen2","sliding_window":4096,"use_sliding_window":true,"max_window_layers":6}`, "6 with full attention, 2 with a sliding window of 4096 tokens"},
		{`{"num_hidden_layers":8,"model_type":"gemma2","sliding_window":4096}`, "4 with a sliding window of 4096 tokens, 4 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"gemma3_text","sliding_window":512}`, "7 with a sliding window of 512 tokens, 1 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"cohere2","sliding_window":4096,"sliding_window_pattern":4}`, "6 with a sliding window of 4096 tokens, 2 with full attention"},
		{`{"num_hidden_layers":3,"layer_types":["full_attention","sliding_attention","full_attention"],"sliding_window":128}`, "2 with full attention, 1 with a sliding window of 128 tokens"},
		{`{"num_hidden_layers":2,"layer_types":["chunked_attention","full_attention"],"attention_chunk_size":8192}`, "1 with chunks of 8192 tokens, 1 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"llama4_text","attention_chunk_size":8192}`, "6 with chunks of 8192 tokens, 2 with full attention"},
		{`{"num_hidden_layers":4,"model_type":"llama4_text","attention_chunk_size":8192,"no_rope_layers":[1,0,1,0]}`, "2 with chunks of 8192 tokens, 2 with full attention"},
		{`{"num_hidden_layers":8,"attn_layer_period":8,"attn_layer_offset":4,"mamba_expand":2,"mamba_d_state":16,"mamba_d_conv":4,"mamba_dt_rank":"auto"}`, "7 with a recurrent state, 1 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"qwen3_next","full_attention_interval":4,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4}`, "6 with a recurrent state, 2 with full attention"},
		{`{"num_hidden_layers":8,"model_type":"deepseek_v32","kv_lora_rank":512,"q_lora_rank":1536,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"index_topk":2048,"index_n_heads":64,"index_head_dim":128}`, "8 with sparse attention to 2048 tokens"},
	} {
		m := mustParse(t, "{"+plain+","+c.config[1:])
		var got []string
		for _, l := range m.Kinds {
			got = append(got, l.String())
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: %s; want %s", c.config, text, c.want)
		}
	}
	// A model with images has its language model inside.
	m := mustParse(t, `{"model_type":"gemma3","vision_config":{},"text_config":{"num_hidden_layers":6,"model_type":"gemma3_text","sliding_window":1024,`+plain+`},"quantization_config":{"quant_method":"fp8"}}`)
	if m.Layers != 6 || len(m.Kinds) != 2 || m.Weights.SharedBytes != 1 {
		t.Errorf("%+v", m)
	}
}

func TestQuantization(t *testing.T) {
	for config, want := range map[string][2]float64{
		`null`:                                                {2, 2},
		`{"quant_method":"fp8"}`:                              {1, 1},
		`{"quant_method":"awq","bits":4}`:                     {int4Bytes, int4Bytes},
		`{"quant_method":"gptq","bits":8}`:                    {1, 1},
		`{"quant_method":"mxfp4"}`:                            {2, mxfp4Bytes},
		`{"quant_algo":"NVFP4"}`:                              {int4Bytes, int4Bytes},
		`{"quant_method":"bitsandbytes","load_in_4bit":true}`: {int4Bytes, int4Bytes},
		`{"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":{"num_bits":8}}}}`: {1, 1},
		`{"quant_method":"something new"}`: {2, 2},
		`{"new":true}`:                     {2, 2},
	} {
		m := mustParse(t, `{"num_hidden_layers":2,"num_local_experts":4,"num_experts_per_tok":2,`+plain+`,"quantization_config":`+config+`}`)
		if m.Weights.SharedBytes != want[0] || m.Weights.RoutedBytes != want[1] {
			t.Errorf("%s: %g and %g bytes, want %v", config, m.Weights.SharedBytes, m.Weights.RoutedBytes, want)
		}
		if (m.Note != "") != strings.Contains(config, "new") {
			t.Errorf("%s: note %q", config, m.Note)
		}
	}
}

// An error names what the file lacks.
func TestBadConfigs(t *testing.T) {
	with := func(rest string) string { return `{"num_hidden_layers":2,` + plain + "," + rest + "}" }
	for config, want := range map[string]string{
		``:                        "not a config.json",
		`[1]`:                     "not a config.json: it is a list, not an object",
		`null`:                    "not a config.json: it is null, not an object",
		`{"num_hidden_layers":2}`: "hidden_size is missing",
		`{"num_hidden_layers":2,"hidden_size":4096}`:                                             "num_attention_heads is missing",
		`{"num_hidden_layers":2,"hidden_size":4096,"num_attention_heads":32}`:                    "vocab_size is missing",
		`{"num_hidden_layers":2,"hidden_size":4096,"num_attention_heads":32,"vocab_size":32000}`: "intermediate_size is missing",
		`{"num_hidden_layers":2,"hidden_size":4096,"num_attention_heads":31,"vocab_size":32000}`: "hidden_size 4096 is no multiple of num_attention_heads 31",
		`{"num_hidden_layers":-3}`:                                                               "num_hidden_layers is -3, not a whole number of 0 to ",
		`{"num_hidden_layers":"many"}`:                                                           `num_hidden_layers is the text "many", not a whole number`,
		`{"num_hidden_layers":1e99}`:                                                             "num_hidden_layers is 1e99, not a whole number",
		`{"num_hidden_layers":20000,` + plain + `}`:                                              "num_hidden_layers is 20000; at most 10000",
		`{"dim":4096,"n_layers":32}`:                                                             "params.json",
		`{"text_config":7}`:                                                                      "text_config is 7, not an object",
		with(`"is_encoder_decoder":true`):                                                        "is_encoder_decoder: the encoder",
		with(`"base_model_name_or_path":"x"`):                                                    "an adapter",
		with(`"num_key_value_heads":5`):                                                          "num_key_value_heads is 5, which does not divide",
		with(`"kv_lora_rank":512`):                                                               "qk_rope_head_dim is missing",
		with(`"layer_types":["full_attention"]`):                                                 "layer_types does not have one word for each of the 2 layers",
		with(`"layer_types":["full_attention","conv"]`):                                          `layers of the kind "conv" cannot be calculated yet`,
		with(`"layer_types":["full_attention","sliding_attention"]`):                             "sliding_window is missing",
		with(`"layer_types":["full_attention","linear_attention"]`):                              "linear_num_key_heads is missing",
		with(`"hybrid_override_pattern":"M-M*"`):                                                 "hybrid_override_pattern: Mamba-2 layers cannot be calculated yet; give the shape by flags",
		with(`"num_kv_shared_layers":10`):                                                        "num_kv_shared_layers",
		with(`"num_experts":8`):                                                                  "num_experts_per_tok is missing",
		with(`"num_experts":8,"num_experts_per_tok":9`):                                          "9 of 8 experts",
		with(`"moe_num_experts":8`):                                                              "the number of experts is not given",
		with(`"multi_query":true`):                                                               "the number of KV heads is not given",
		with(`"sliding_window":4096,"sliding_window_pattern":"LLLG"`):                            "layer_types",
		with(`"tie_word_embeddings":"yes"`):                                                      `tie_word_embeddings is the text "yes", not true or false`,
		with(`"model_type":7`):                                                                   "model_type is 7, not a text",
		with(`"quantization_config":[]`):                                                         "quantization_config is a list, not an object",
		with(`"hidden_size":1000000000,"num_attention_heads":8`):                                 "key and value",
		"{\n\"num_hidden_layers\": 2,\n\"hidden_size\": x}":                                      "not a config.json: line 3: invalid character 'x'",
		`{"text_config":{"num_hidden_layers":2}}`:                                                "text_config.hidden_size is missing",
		`{"text_config":{"num_hidden_layers":"2"}}`:                                              `text_config.num_hidden_layers is the text "2", not a whole number`,
		with(`"quantization_config":{"bits":"4"}`):                                               `quantization_config.bits is the text "4", not a number`,
		with(`"quantization_config":{"bits":[4]}`):                                               "quantization_config.bits is a list, not a number",
		with(`"quantization_config":{"bits":77}`):                                                "quantization_config: 77 bits are no size of a weight",
		with(`"quantization_config":{"bits":-4}`):                                                "quantization_config.bits is -4, not a number of 0 or more",
		with(`"quantization_config":{"quant_method":8}`):                                         "quantization_config.quant_method is 8, not a text",
		with(`"quantization_config":{"load_in_4bit":1}`):                                         "quantization_config.load_in_4bit is 1, not true or false",
		with(`"quantization_config":{"config_groups":[]}`):                                       "quantization_config.config_groups is a list, not an object",
		with(`"quantization_config":{"config_groups":{"group_0":8}}`):                            "quantization_config.config_groups.group_0 is 8, not an object",
		with(`"quantization_config":{"config_groups":{"group_0":{"weights":{"num_bits":"8"}}}}`): `quantization_config.config_groups.group_0.weights.num_bits is the text "8", not a number`,
		`{"text_config":{"quantization_config":7,` + plain + `,"num_hidden_layers":2}}`:          "text_config.quantization_config is 7, not an object",
	} {
		if m, err := Parse([]byte(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %q", config, m, err, want)
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "num_hidden_layers") {
		t.Errorf("an empty object: %v", err)
	}
	if err := os.Truncate(path, maxConfigBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a huge file: %v", err)
	}
}

// Models without a KV cache of a prompt are refused, with the key that says so.
func TestOtherModels(t *testing.T) {
	const encoder = `"hidden_size":768,"intermediate_size":3072,"num_attention_heads":12,"num_hidden_layers":12`
	for name, c := range map[string]struct{ config, want string }{
		"BERT":               {`{"model_type":"bert","architectures":["BertForMaskedLM"],"vocab_size":30522,` + encoder + `}`, "no KV cache to load: model_type: bert is an encoder: each token sees those that follow"},
		"BGE-M3":             {`{"model_type":"xlm-roberta","architectures":["XLMRobertaModel"],"vocab_size":250002,` + encoder + `}`, "model_type: xlm-roberta is an encoder"},
		"an unknown encoder": {`{"model_type":"mybert","architectures":["MyBertForMaskedLM"],"vocab_size":30522,` + encoder + `}`, `architectures: "MyBertForMaskedLM" fills in text or picks some, and generates none`},
		"T5":                 {`{"model_type":"t5","architectures":["T5ForConditionalGeneration"],"is_encoder_decoder":true,"d_model":512,"num_layers":6,"num_heads":8,"vocab_size":32128}`, "is_encoder_decoder: the encoder sees all of a prompt at once"},
		"Florence-2":         {`{"model_type":"florence2","text_config":{"is_encoder_decoder":true,"vocab_size":51289,` + encoder + `}}`, "text_config.is_encoder_decoder: the encoder"},
		"ViT":                {`{"model_type":"vit","architectures":["ViTForImageClassification"],"image_size":224,"patch_size":16,` + encoder + `}`, "model_type: vit reads images or sound and generates no text"},
		"an unknown ViT":     {`{"model_type":"myvit","image_size":224,"patch_size":16,` + encoder + `}`, "patch_size: a model of images"},
		"CLIP":               {`{"model_type":"clip","text_config":{"vocab_size":49408,` + encoder + `},"vision_config":{}}`, "model_type: clip reads images or sound"},
		"wav2vec 2.0":        {`{"model_type":"w2v","architectures":["Wav2Vec2ForCTC"],"vocab_size":32,` + encoder + `}`, `architectures: "Wav2Vec2ForCTC" reads images or sound`},
		"Stable Diffusion":   {`{"_class_name":"UNet2DConditionModel","_diffusers_version":"0.2.2"}`, "_class_name: a part of a diffusion pipeline"},
		"E5 Mistral":         {`{"model_type":"mistral","architectures":["MistralModel"],"vocab_size":32000,` + encoder + `}`, `architectures: "MistralModel" has no output head`},
		"GTE Qwen2":          {`{"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"is_causal":false,"vocab_size":151646,` + encoder + `}`, "is_causal is false: each token sees those that follow"},
		"EmbeddingGemma":     {`{"model_type":"gemma3_text","use_bidirectional_attention":true,"vocab_size":262144,` + encoder + `}`, "use_bidirectional_attention: each token sees those that follow"},
		"all of it":          {`{"model_type":"gemma3_text","use_bidirectional_attention":"all","vocab_size":262144,` + encoder + `}`, "use_bidirectional_attention: each token sees those that follow"},
		"a reward model":     {`{"model_type":"qwen2","architectures":["Qwen2ForRewardModel"],"vocab_size":151646,` + encoder + `}`, `architectures: "Qwen2ForRewardModel" scores text and generates none`},
	} {
		if m, err := Parse([]byte(c.config)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want an error with %q", name, m, err, c.want)
		}
	}
	// Those that resemble them are calculated.
	for name, config := range map[string]string{
		"a decoder of BERT's kind": `{"model_type":"bert","is_decoder":true,"architectures":["BertLMHeadModel"],"vocab_size":30522,` + encoder + `}`,
		"images both ways":         `{"model_type":"gemma3_text","use_bidirectional_attention":"vision","vocab_size":262144,` + encoder + `}`,
		"InternVL":                 `{"model_type":"internvl_chat","architectures":["InternVLChatModel"],"image_size":448,"patch_size":14,"llm_config":{"vocab_size":92553,` + encoder + `}}`,
		"QWen":                     `{"model_type":"qwen","architectures":["QWenLMHeadModel"],"vocab_size":151936,` + encoder + `}`,
	} {
		if _, err := Parse([]byte(config)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of a model that also reads images, the language model is read, and the note says so.
func TestSenses(t *testing.T) {
	for config, want := range map[string]string{
		`{"model_type":"gemma3","vision_config":{},"text_config":{"num_hidden_layers":6,` + plain + `}}`:                                      "only the language model is counted (text_config), not the weights",
		`{"thinker_config":{"audio_config":{},"text_config":{"num_hidden_layers":6,` + plain + `}}}`:                                          "only the language model is counted (thinker_config.text_config)",
		`{"model_type":"qwen2_vl","vision_config":{"depth":32},"num_hidden_layers":6,` + plain + `}`:                                          "only the language model is counted, not the weights and tokens of vision_config",
		`{"text_config":{"num_hidden_layers":6,` + plain + `},"quantization_config":{"quant_method":"new"}}`:                                  `(text_config), not the weights and tokens of other parts; the size of weights in "new" is not known`,
		`{"num_hidden_layers":6,"vision_config":null,` + plain + `}`:                                                                          "",
		`{"text_config":{"num_hidden_layers":6,"quantization_config":{"quant_method":"fp8"},` + plain + `},"quantization_config":{"bits":4}}`: "only the language model",
	} {
		m := mustParse(t, config)
		if m.Layers != 6 || !strings.Contains(m.Note, want) || (m.Note == "") != (want == "") {
			t.Errorf("%s: %d layers, note %q; want %q", config, m.Layers, m.Note, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	all, err := entries()
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"QwQ-32B", "DeepSeek-V3.2", "Gemma-3-27B", "Llama-4-Maverick-17B-128E", "Qwen3-Next-80B-A3B", "Jamba-v0.1", "gpt-oss-20b"} {
		entry := all[name]
		if entry == nil {
			f.Fatal(name)
		}
		f.Add([]byte(entry))
	}
	f.Add([]byte(`{"text_config":{"num_hidden_layers":2,` + plain + `},"vision_config":{},"architectures":["XForMaskedLM"]}`))
	f.Add([]byte(`{"num_hidden_layers":2,` + plain + `,"quantization_config":{"bits":"4","config_groups":{"a":{"weights":{"num_bits":8}}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse(text)
		if err != nil {
			for _, internal := range []string{"json: cannot", "Go value", "Go struct", "unmarshal"} { // messages are for readers of the file
				if strings.Contains(err.Error(), internal) && !strings.Contains(string(text), internal) {
					t.Errorf("%v", err)
				}
			}
			return
		}
		if flops := m.FLOPs(0, 1<<20); !(flops > 0) || math.IsInf(flops, 0) {
			t.Errorf("%g operations", flops)
		}
		if read := m.Weights.Read(1 << 20); !(read > 0) || read > m.Weights.Bytes()*1.001 {
			t.Errorf("%g of %g bytes", read, m.Weights.Bytes())
		}
		if bytes, err := m.HitBytes(Ranks{TP: 1}, 1<<20, 128, false); err != nil || bytes < 0 {
			t.Errorf("%d bytes, %v", bytes, err)
		}
	})
}

// What each kind of layer costs, written out.
func TestCosts(t *testing.T) {
	const n, hit = 32_768, 26_112
	pairs := func(name string, cached, total int) float64 { // of attention, per layer of the first kind
		l := mustKnown(t, name).Kinds[0]
		return l.pairs(float64(total)) - l.pairs(float64(cached))
	}
	for _, c := range []struct {
		name string
		want float64
	}{
		{"QwQ-32B", (n*n - hit*hit) / 2},
		{"Mistral-7B", (n - hit) * 4096},
		{"Gemma-3-27B", (n - hit) * 1024},
		{"Llama-4-Scout-17B-16E", 8192*8192/2 - 1536*1536/2}, // three chunks and 1,536 tokens are cached
		{"Qwen3-Next-80B-A3B", 0},
		{"DeepSeek-V3.2", (n - hit) * 2048 * (576 + 512) / 320.},
	} {
		if got := pairs(c.name, hit, n); math.Abs(got-c.want) > 1 {
			t.Errorf("%s: %.0f pairs, want %.0f", c.name, got, c.want)
		}
	}
	if got := pairs("Mistral-7B", 0, 1000); got != 1000*1000/2 {
		t.Errorf("a prompt within the window: %g pairs", got)
	}
	for _, c := range []struct {
		name  string
		ranks Ranks
		whole bool
		want  int64
	}{
		{"QwQ-32B", Ranks{TP: 2}, false, hit * 262_144},
		{"Qwen3-30B-A3B", Ranks{TP: 4}, false, hit * 98_304},
		{"Qwen3-30B-A3B", Ranks{TP: 8}, false, hit * 2 * 98_304}, // 4 KV heads: each on two ranks
		{"DeepSeek-R1", Ranks{TP: 8}, false, hit * 70_272},
		{"DeepSeek-R1", Ranks{TP: 16, Hosts: 2}, false, hit * 2 * 70_272},
		{"DeepSeek-V3.2", Ranks{TP: 8}, false, hit * 61 * (1152 + 132)},
		{"Mistral-7B", Ranks{TP: 1}, false, 4096 * 131_072},
		{"Mistral-7B", Ranks{TP: 1}, true, hit * 131_072},
		{"Gemma-3-27B", Ranks{TP: 1}, false, (10*hit + 52*1024) * 8192},
		{"Llama-4-Scout-17B-16E", Ranks{TP: 8}, false, (12*hit + 36*1536) * 4096},
		{"Qwen3-Next-80B-A3B", Ranks{TP: 2}, false, 12*hit*2048 + 36*(4*32*128*128+2*8192*3)},
		{"Jamba-v0.1", Ranks{TP: 1}, false, 4*hit*4096 + 28*(4*8192*16+2*8192*3)},
	} {
		m := mustKnown(t, c.name)
		if got, err := m.HitBytes(c.ranks, hit, 128, c.whole); err != nil || got != c.want {
			t.Errorf("%s, %+v, whole %v: %d bytes, %v; want %d", c.name, c.ranks, c.whole, got, err, c.want)
		}
		if got, err := m.HitBytes(c.ranks, 0, 128, c.whole); err != nil || got != 0 {
			t.Errorf("%s: no hit loads %d bytes, %v", c.name, got, err)
		}
	}
	// A window that is no multiple of a block is loaded in whole blocks; a chunk that has
	// ended, not at all.
	window, chunk := Layers{Kind: Sliding, Window: 1000}, Layers{Kind: Chunked, Window: 8192}
	if window.needed(5120, 256) != 1024 || window.needed(512, 256) != 512 || chunk.needed(16_384, 128) != 0 || chunk.needed(16_384+128, 128) != 128 {
		t.Errorf("%d %d %d %d", window.needed(5120, 256), window.needed(512, 256), chunk.needed(16_384, 128), chunk.needed(16_384+128, 128))
	}
}

func mustKnown(t *testing.T, name string) Model {
	t.Helper()
	m, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Words after a name set the release and the size of the weights.
func TestLookup(t *testing.T) {
	for name, want := range map[string]struct {
		name   string
		gb     float64
		window bool
	}{
		"mistralai/Mistral-7B-Instruct-v0.1": {"Mistral-7B", 14.5, true},
		"mistralai/Mistral-7B-Instruct-v0.3": {"Mistral-7B-v0.3", 14.5, false},
		"Qwen/QwQ-32B":                       {"QwQ-32B", 65.5, false},
		"Qwen/QwQ-32B-AWQ":                   {"QwQ-32B", 19.7, false},
		"Qwen/Qwen3-32B-FP8":                 {"Qwen3-32B", 34.3, false},
		"unsloth/DeepSeek-V3-bf16":           {"DeepSeek-V3", 1342, false},
		"deepseek-ai/DeepSeek-R1":            {"DeepSeek-R1", 673, false},
		"openai/gpt-oss-120b":                {"gpt-oss-120b", 65.2, true},
	} {
		m, err := Lookup(name)
		if err != nil || m.Name != want.name || math.Abs(m.Weights.Bytes()/1e9/want.gb-1) > 0.01 || m.Windowed() != want.window {
			t.Errorf("%s: %s, %.1f GB, windowed %v, %v; want %+v", name, m.Name, m.Weights.Bytes()/1e9, m.Windowed(), err, want)
		}
	}
	if _, err := Lookup("QwQ-33B"); err == nil || !strings.Contains(err.Error(), "similar names: QwQ-32B") {
		t.Errorf("misspelt: %v", err)
	}
}

func TestWeights(t *testing.T) {
	w := mustKnown(t, "Mixtral-8x7B").Weights
	if got := w.Read(1 << 20); math.Abs(got/(w.Bytes()-2*w.Vocabulary)-1) > 1e-9 {
		t.Errorf("a long pass reads %g of %g bytes", got, w.Bytes())
	}
	half, err := w.OfSize(w.Bytes() / 2)
	if err != nil || math.Abs(half.Bytes()/w.Bytes()-0.5) > 1e-9 {
		t.Errorf("half: %g of %g, %v", half.Bytes(), w.Bytes(), err)
	}
	if _, err := w.OfSize(1e6); err == nil {
		t.Error("a megabyte for 47 billion parameters")
	}
}

func TestBadModels(t *testing.T) {
	good := Layers{Kind: Full, Count: 2, QueryHeads: 8, KeyDim: 64, ValueDim: 64, KVHeads: 8}
	with := func(change func(*Layers)) Layers { l := good; change(&l); return l }
	for _, c := range []struct {
		l    Layers
		want string
	}{
		{with(func(l *Layers) { l.Count = 0 }), "layers must be"},
		{with(func(l *Layers) { l.KVHeads = 0 }), "give KV heads"},
		{with(func(l *Layers) { l.LatentDim = 576 }), "not both"},
		{with(func(l *Layers) { l.QueryHeads = -1 }), "query heads"},
		{with(func(l *Layers) { l.QueryHeads = 12 }), "query heads must be a multiple of the KV heads, 8, not 12"},
		{with(func(l *Layers) { l.KeyDim = 0 }), "key and value"},
		{with(func(l *Layers) { l.Kind = Sliding }), "a window must be"},
		{with(func(l *Layers) { l.Kind, l.Window = Sparse, 9 }), "sparse attention needs MLA"},
		{Layers{Kind: State, Count: 1}, "a layer's state must be"},
	} {
		if err := Uniform(c.l, Dense(1e9)).Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.l, err, c.want)
		}
	}
	m := Uniform(good, Dense(1e9))
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	m.KVType = "int3"
	if err := m.Check(); err == nil || !strings.Contains(err.Error(), `"int3"`) {
		t.Error(err)
	}
	m.KVType = model.FP8
	m.Layers++
	if err := m.Check(); err == nil {
		t.Error("one layer too many")
	}
	if _, err := m.BytesPerToken(Ranks{TP: 3}); err == nil || !strings.Contains(err.Error(), "cannot be divided") {
		t.Error(err)
	}
	if err := (Model{}).Check(); err == nil || !strings.Contains(err.Error(), "no layers") {
		t.Error(err)
	}
	jamba := mustKnown(t, "Jamba-v0.1")
	if n, err := jamba.LayerBytesPerToken(Ranks{TP: 1}); err == nil {
		t.Errorf("equal layers of Jamba: %d", n)
	}
	gemma := mustKnown(t, "Gemma-3-27B")
	if n, err := gemma.LayerBytesPerToken(Ranks{TP: 2}); err != nil || n != 8192 {
		t.Errorf("layers of Gemma 3: %d, %v", n, err)
	}
}
