package transformer

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// known holds what decides the cost of the models that Lookup knows: for each name the
// keys of its config.json that do, the repository on Hugging Face where it lies (source),
// and the published number of parameters in billions, with embeddings.
//
//go:embed known.json
var known []byte

// published is an entry of known.json, besides the keys of a config.json.
type published struct {
	SameAs         string  `json:"same_as"` // another entry has the same config.json
	Source         string  `json:"source"`
	Billions       float64 `json:"billions"`
	ActiveBillions float64 `json:"active_billions"` // of a mixture of experts
}

func entries() (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(known, &all); err != nil {
		return nil, fmt.Errorf("model: known.json: %w", err)
	}
	return all, nil
}

// Lookup finds a model by its name, as on Hugging Face. It ignores case, the owner before
// the slash, and words that are known not to change the shape. Words such as FP8 or AWQ
// set the size of the weights.
func Lookup(name string) (Model, error) {
	canonical, words, err := model.Identify(name)
	if err != nil {
		return Model{}, err
	}
	all, err := entries()
	if err != nil {
		return Model{}, err
	}
	for _, word := range words { // a release of its own
		if _, ok := all[canonical+"-"+word]; ok {
			canonical += "-" + word
			break
		}
	}
	m, _, err := parseEntry(all, canonical)
	if err != nil {
		return Model{}, fmt.Errorf("model: %s: %w", canonical, err)
	}
	m.Name = canonical
	switch {
	case containsAny(words, "fp8", "int8", "w8a8"):
		m.Weights = m.Weights.Quantized(1)
	case containsAny(words, "awq", "gptq", "int4", "fp4", "nvfp4"):
		m.Weights = m.Weights.Quantized(int4Bytes)
	case containsAny(words, "bf16"):
		m.Weights = m.Weights.Quantized(2)
	}
	return m, nil
}

func parseEntry(all map[string]json.RawMessage, name string) (m Model, p published, err error) {
	text, ok := all[name]
	if !ok {
		return m, p, fmt.Errorf("known.json lacks %s", name)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return m, p, err
	}
	if p.SameAs != "" {
		source := p.Source
		m, p, err = parseEntry(all, p.SameAs)
		p.Source = source
		return m, p, err
	}
	m, err = Parse(text)
	return m, p, err
}

func containsAny(words []string, any ...string) bool {
	return slices.ContainsFunc(any, func(w string) bool { return slices.Contains(words, w) })
}
