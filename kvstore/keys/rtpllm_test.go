package keys

import (
	"slices"
	"testing"
)

// TestRTPLLM compares with what testdata/rtpllm.cc printed, compiled with g++ 12.2 for
// x86-64. The tokens have all 32 bits, so that the sign matters.
func TestRTPLLM(t *testing.T) {
	want := []int64{
		3620348805944723699,
		-589777387914333168,
		-7558479640961933033,
		-2538743665000171439,
		-7146553916482771965,
		-6690235141537614457,
		6674231983280688422,
		7850880693119278220,
		550476756508456752,
		69154971272026038,
		2030872545057600063,
		5681390200124508035,
		-3707194270149578808,
		-6949505442606401021,
		5416521842509054953,
	}
	chain, err := NewRTPLLMChain(Namespace{Model: "m", BlockTokens: 64})
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint32, 1000)
	token := uint32(1)
	for i := range tokens {
		tokens[i] = token
		token = token*1664525 + 1013904223
	}
	var got []int64
	for _, key := range chain.Append(tokens) {
		n, ok := key.Int64()
		if !ok {
			t.Fatalf("%s is no number", key)
		}
		got = append(got, n)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestRTPLLMRefusesSalt(t *testing.T) {
	if _, err := NewRTPLLMChain(Namespace{Model: "m", BlockTokens: 64, Salt: "tenant"}); err == nil {
		t.Error("a salt is ignored")
	}
}
