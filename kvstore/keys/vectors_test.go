package keys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// vectors is the input and output of testdata/chains.py.
type vectors struct {
	Python string       `json:"python,omitempty"`
	Cases  []vectorCase `json:"cases"`
}

type vectorCase struct {
	Engine       string     `json:"engine"`
	BlockTokens  int        `json:"block_tokens"`
	Tokens       []uint32   `json:"tokens,omitempty"`
	Rule         *rule      `json:"rule,omitempty"`
	Salted       bool       `json:"salted,omitempty"`
	Salt         string     `json:"salt"`
	Algorithm    string     `json:"algorithm,omitempty"`
	Extra        string     `json:"extra"`
	Root         int64      `json:"root"`
	HashSeed     string     `json:"hash_seed,omitempty"`
	WholeDigests bool       `json:"whole_digests,omitempty"`
	Model        string     `json:"model,omitempty"`
	DType        string     `json:"dtype,omitempty"`
	TPSize       int        `json:"tp_size"`
	TPRank       int        `json:"tp_rank"`
	MLA          bool       `json:"mla,omitempty"`
	RequestAware bool       `json:"request_aware,omitempty"`
	Suffix       string     `json:"suffix,omitempty"`
	Namespace    *Namespace `json:"namespace,omitempty"`
	IDs          []string   `json:"ids,omitempty"` // nil where that Python can't tell
}

type rule struct {
	Count   int    `json:"count"`
	First   uint32 `json:"first"`
	Step    uint32 `json:"step"`
	Modulus uint32 `json:"modulus"`
}

func (c vectorCase) tokens() []uint32 {
	if c.Rule == nil {
		return c.Tokens
	}
	tokens := make([]uint32, c.Rule.Count)
	for i := range tokens {
		tokens[i] = uint32((uint64(c.Rule.First) + uint64(i)*uint64(c.Rule.Step)) % uint64(c.Rule.Modulus))
	}
	return tokens
}

func (c vectorCase) chain() (*Chain, error) {
	ns := Namespace{Model: "m", BlockTokens: c.BlockTokens, Salt: c.Salt}
	switch c.Engine {
	case "own":
		return NewChain(*c.Namespace)
	case "vllm":
		return NewVLLMChain(ns, VLLM{Salted: c.Salted})
	case "sglang":
		return NewSGLangChain(ns)
	case "lmcache":
		return NewLMCacheChain(ns, LMCache{
			Algorithm: c.Algorithm, Extra: LMCacheExtra(c.Extra), Root: c.Root, HashSeed: c.HashSeed, WholeDigests: c.WholeDigests,
		})
	case "ucm":
		ns.Model, ns.DType, ns.TPSize, ns.TPRank = c.Model, c.DType, c.TPSize, c.TPRank
		return NewUCMChain(ns, UCM{MLA: c.MLA, RequestAware: c.RequestAware, Suffix: c.Suffix})
	}
	return nil, fmt.Errorf("no such engine: %q", c.Engine)
}

// check compares a chain with Python's result.
func (c vectorCase) check(t *testing.T) {
	t.Helper()
	chain, err := c.chain()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if ns := c.Namespace; ns != nil {
		got = append(got, ns.Fingerprint().String(), ns.Key([]byte{1, 2, 3}).String())
	}
	for _, block := range chain.AppendBlocks(c.tokens()) {
		got = append(got, block.ID.String())
	}
	if !slices.Equal(got, c.IDs) {
		c.Tokens, got, c.IDs = c.Tokens[:min(8, len(c.Tokens))], got[:min(2, len(got))], c.IDs[:min(2, len(c.IDs))]
		t.Errorf("%+v: the ids begin %q", c, got)
	}
}

// IDs are what CPython computes from their definitions. kv3fs's own must never change,
// since blocks are stored under them.
func TestNamesDoNotChange(t *testing.T) {
	text, err := os.ReadFile("testdata/chains.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, c := range v.Cases {
		c.check(t)
		seen[c.Engine] += len(c.IDs)
	}
	for _, engine := range []string{"own", "vllm", "sglang", "lmcache", "ucm"} {
		if seen[engine] < 20 {
			t.Errorf("%d ids of %s were compared", seen[engine], engine)
		}
	}
}

// These ids are from the specification of the connectors, and older than our script.
func TestKnownIDs(t *testing.T) {
	ns := Namespace{Model: "m", BlockTokens: 4}
	tokens := []uint32{0, 1, 2, 3, 4, 5, 6, 7}
	for name, test := range map[string]struct {
		make func() (*Chain, error)
		want []string
	}{
		"vLLM": {func() (*Chain, error) { return NewVLLMChain(ns, VLLM{}) },
			[]string{"d8839002544966f443098ab486a3e3e8", "2a31dd6ca46ee7d69c079ca5004c07ad"}},
		"vLLM, salted": {func() (*Chain, error) { return NewVLLMChain(ns, VLLM{Salted: true}) },
			[]string{"44aad182b5a8a40926162f81a84f091f"}},
		"SGLang": {func() (*Chain, error) { return NewSGLangChain(ns) },
			[]string{"baed642339816affb3fe8719792d0e4ce82f12db72b7373d244eaa65445800fe",
				"01414b052706d93bd0f1f1646c0e8ca2fa8ef5efd7bcc99f7a1cee8eb11ad052"}},
	} {
		chain, err := test.make()
		if err != nil {
			t.Fatal(err)
		}
		blocks := chain.AppendBlocks(tokens)
		for i, want := range test.want {
			if got := blocks[i].ID.String(); got != want {
				t.Errorf("%s, block %d: %s, not %s", name, i, got, want)
			}
		}
	}
}

// For random tokens the Python of this machine makes the same ids.
func TestChainsAgainstPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	if err := exec.Command(python, "-c", "import sys; sys.exit(sys.version_info < (3, 8))").Run(); err != nil {
		t.Skip("python3 does not run, or is older than 3.8")
	}
	from := rand.New(rand.NewPCG(seed.New(t), 0))
	var v vectors
	for range 400 {
		v.Cases = append(v.Cases, drawCase(from))
	}
	in, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	script := exec.Command(python, "testdata/chains.py")
	script.Stdin = bytes.NewReader(in)
	out, err := script.Output()
	if err != nil {
		t.Fatal(err)
	}
	var told vectors
	if err := json.Unmarshal(out, &told); err != nil {
		t.Fatal(err)
	}
	if len(told.Cases) != len(v.Cases) {
		t.Fatalf("%d cases came back", len(told.Cases))
	}
	for _, c := range told.Cases {
		if c.IDs != nil {
			c.check(t)
		}
	}
}

// drawCase draws tokens of every size that has its own encoding, and sometimes a block
// whose pickle has several frames.
func drawCase(from *rand.Rand) vectorCase {
	one := func(of ...string) string { return of[from.IntN(len(of))] }
	c := vectorCase{
		Engine:      one("vllm", "sglang", "lmcache", "ucm"),
		BlockTokens: 1 + from.IntN(40),
		TPSize:      1,
	}
	most := uint32(1<<(1+from.IntN(32)) - 1)
	if from.IntN(10) == 0 {
		c.BlockTokens = 10_000 + from.IntN(60_000)
		c.Rule = &rule{Count: c.BlockTokens, Step: from.Uint32(), Modulus: most, First: from.Uint32()}
	} else {
		c.Tokens = make([]uint32, c.BlockTokens+from.IntN(100))
		for i := range c.Tokens {
			c.Tokens[i] = from.Uint32() & most
		}
	}
	switch c.Engine {
	case "vllm":
		c.Salted, c.Salt = from.IntN(2) == 0, one("", "tenant 7", "ä_\x00[")
	case "lmcache":
		c.Algorithm, c.Extra = one("builtin", "sha256", "sha256_cbor"), one("", "none", "absent")
		if c.Algorithm == "builtin" {
			c.Root = int64(from.Uint64())
		} else {
			c.HashSeed, c.WholeDigests = fmt.Sprint(from.Uint32()), from.IntN(2) == 0
		}
	case "ucm":
		c.Model, c.DType = one("m", "Qwen/QwQ-32B", "/models/a:b/", "/x//y"), one("bfloat16", "float16")
		c.TPSize = 1 + from.IntN(64)
		c.TPRank, c.MLA = from.IntN(c.TPSize), from.IntN(2) == 0
		if c.RequestAware = from.IntN(2) == 0; c.RequestAware {
			c.Suffix = one("", ":mtp:1:sfa_c8=0:li_c8=0")
		}
	}
	return c
}
