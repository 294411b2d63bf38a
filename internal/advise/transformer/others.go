package transformer

import (
	"errors"
	"slices"
	"strings"
)

// ErrNoPrefix reports a file of a model whose prompts have no KV cache that other prompts
// with the same beginning could use.
var ErrNoPrefix = errors.New("no KV cache to load")

// encoders returns values of model_type whose attention sees the tokens that follow, so
// that a longer prompt changes all of its KV.
func encoders() []string {
	return []string{
		"albert", "bert", "big_bird", "camembert", "canine", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
		"esm", "eurobert", "flaubert", "fnet", "funnel", "gte", "ibert", "layoutlm", "layoutlmv2", "layoutlmv3", "lilt", "longformer",
		"luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "neobert", "new", "nezha", "nomic_bert", "nystromformer", "rembert",
		"roberta", "roberta-prelayernorm", "roformer", "splinter", "squeezebert", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso",
	}
}

// sights returns values of model_type that have no language model that generates text.
func sights() []string {
	return []string{
		"align", "altclip", "beit", "blip", "chinese_clip", "clap", "clip", "clip_text_model", "clip_vision_model", "clipseg", "convnext",
		"data2vec-audio", "data2vec-vision", "deit", "depth_anything", "detr", "dinov2", "dinov3_vit", "hubert", "owlvit", "resnet", "sam",
		"segformer", "siglip", "siglip2", "siglip2_vision_model", "siglip_text_model", "siglip_vision_model", "swin", "swinv2", "unispeech",
		"vit", "vit_mae", "videomae", "wav2vec2", "wav2vec2-bert", "wavlm", "yolos",
	}
}

// refuseOthers fails for a file of another kind of model than a decoder of text.
func (c *config) refuseOthers() {
	kind := c.text("model_type")
	const bothWays = "each token sees those that follow, so the KV of a prefix is another one in each prompt"
	switch {
	case c.has("_class_name"):
		c.refuse("_class_name", "a part of a diffusion pipeline, not a language model")
	case c.truth("is_encoder_decoder", false):
		c.refuse("is_encoder_decoder", "the encoder sees all of a prompt at once, and all of the decoder's cache depends on it")
	case slices.Contains(encoders(), kind) && !c.truth("is_decoder", false):
		c.refuse("model_type", kind+" is an encoder: "+bothWays)
	case slices.Contains(sights(), kind):
		c.refuse("model_type", kind+" reads images or sound and generates no text")
	case c.has("is_causal") && !c.truth("is_causal", true):
		c.refuse("is_causal is false", bothWays+", as in embedding models")
	case c.bidirectional():
		c.refuse("use_bidirectional_attention", bothWays+", as in embedding models")
	case c.has("image_size") && c.has("patch_size") && !c.has("vocab_size") && !c.multimodal():
		c.refuse("patch_size", "a model of images without a vocabulary, which generates no text")
	}
	if c.path != "" || c.multimodal() {
		return // architectures names the whole
	}
	for _, class := range c.texts("architectures") {
		if task := taskOf(class); task != "" {
			c.fail("architectures: %.60q %s, so there is no time to the first token", class, task)
		}
	}
}

func (c *config) refuse(key, why string) { c.fail("%w: %s%s: %.200s", ErrNoPrefix, c.path, key, why) }

// multimodal reports whether the language model is described in an object of its own.
func (c *config) multimodal() bool {
	return slices.ContainsFunc(languageKeys(), c.has)
}

// languageKeys are the objects that describe the language model of one that also reads
// images or sound. The first may contain the second.
func languageKeys() []string {
	return []string{"thinker_config", "text_config", "llm_config", "language_config"}
}

// bidirectional reports whether all tokens see those that follow; those of images may.
func (c *config) bidirectional() bool {
	if found(c.fields["use_bidirectional_attention"]) == `the text "vision"` {
		return false
	}
	if found(c.fields["use_bidirectional_attention"]) == `the text "all"` {
		return true
	}
	return c.truth("use_bidirectional_attention", false)
}

// taskOf says what a class of transformers does instead of generating text, "" if it
// generates text or nothing is known of it.
func taskOf(class string) string {
	task, headless := "", true
	if at := strings.LastIndex(class, "For"); at >= 0 {
		task, headless = class[at+len("For"):], false
	}
	switch {
	case slices.Contains([]string{"SequenceClassification", "TokenClassification", "RewardModel", "ProcessRewardModel", "MultipleChoice"}, task):
		return "scores text and generates none"
	case slices.Contains([]string{"MaskedLM", "PreTraining", "NextSentencePrediction", "QuestionAnswering"}, task):
		return "fills in text or picks some, and generates none"
	case slices.Contains([]string{"ImageClassification", "ObjectDetection", "SemanticSegmentation", "DepthEstimation", "CTC", "AudioClassification", "MaskedImageModeling"}, task):
		return "reads images or sound and generates no text"
	case headless && strings.HasSuffix(class, "Model") && !strings.Contains(class, "LMHead") && !strings.Contains(class, "Chat"):
		return "has no output head, as embedding models have none"
	}
	return ""
}
