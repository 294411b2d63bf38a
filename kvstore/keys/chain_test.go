package keys

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// chains has one chain of each kind.
var chains = map[string]func(Namespace) (*Chain, error){
	"own":         NewChain,
	"vllm":        func(ns Namespace) (*Chain, error) { return NewVLLMChain(ns, VLLM{}) },
	"vllm salted": func(ns Namespace) (*Chain, error) { return NewVLLMChain(ns, VLLM{Salted: true}) },
	"sglang":      NewSGLangChain,
	"lmcache":     func(ns Namespace) (*Chain, error) { return NewLMCacheChain(ns, LMCache{}) },
	"lmcache sha256": func(ns Namespace) (*Chain, error) {
		return NewLMCacheChain(ns, LMCache{Algorithm: LMCacheSHA256, HashSeed: "0"})
	},
	"lmcache cbor": func(ns Namespace) (*Chain, error) {
		return NewLMCacheChain(ns, LMCache{Algorithm: LMCacheSHA256CBOR, HashSeed: "0", WholeDigests: true})
	},
	"ucm": func(ns Namespace) (*Chain, error) { return NewUCMChain(ns, UCM{}) },
}

func each(t *testing.T, ns Namespace, test func(t *testing.T, chain *Chain)) {
	for name, make := range chains {
		t.Run(name, func(t *testing.T) {
			chain, err := make(ns)
			if err != nil {
				t.Fatal(err)
			}
			test(t, chain)
		})
	}
}

func withBlocks(blockTokens int) Namespace {
	ns := qwen
	ns.BlockTokens = blockTokens
	return ns
}

func TestKeysDoNotDependOnCalls(t *testing.T) {
	each(t, withBlocks(5), func(t *testing.T, template *Chain) {
		rapid.Check(t, func(t *rapid.T) {
			turns := rapid.SliceOfN(rapid.SliceOfN(rapid.Uint32(), 0, 17), 0, 6).Draw(t, "turns")
			whole := slices.Concat(turns...)
			want := template.Keys(whole)
			if len(want) != len(whole)/5 {
				t.Fatalf("%d tokens have %d keys", len(whole), len(want))
			}
			chain := template.Clone()
			var got, branch []Key
			for i, turn := range turns {
				if i == len(turns)/2 {
					// A clone and its original do not affect each other.
					branch = append(slices.Clone(got), chain.Clone().Append(slices.Concat(turns[i:]...))...)
				}
				for _, block := range chain.AppendBlocks(turn) {
					got = append(got, block.Key)
				}
			}
			if !slices.Equal(got, want) || len(turns) > 0 && !slices.Equal(branch, want) {
				t.Fatalf("%v and %v, not %v", got, branch, want)
			}
			if chain.Len() != len(whole) {
				t.Fatalf("the chain has taken %d tokens, not %d", chain.Len(), len(whole))
			}
		})
	})
}

func TestEveryTokenChangesAllKeysAfterIt(t *testing.T) {
	each(t, withBlocks(4), func(t *testing.T, chain *Chain) {
		rapid.Check(t, func(t *rapid.T) {
			a := rapid.SliceOfN(rapid.Uint32(), 4, 40).Draw(t, "tokens")
			at := rapid.IntRange(0, len(a)-1).Draw(t, "place")
			b := slices.Clone(a)
			b[at] ^= rapid.Uint32Range(1, 1<<32-1).Draw(t, "change")
			x, y := chain.Keys(a), chain.Keys(b)
			for i := range x {
				if (x[i] == y[i]) != (i < at/4) {
					t.Fatalf("token %d changed, and block %d: %s, %s", at, i, x[i], y[i])
				}
			}
		})
	})
}

func TestNoKeyTwice(t *testing.T) {
	each(t, withBlocks(1), func(t *testing.T, chain *Chain) {
		seen := map[Key]bool{}
		for _, key := range chain.Keys(make([]uint32, 1000)) {
			if seen[key] {
				t.Fatalf("key %s occurs twice in a sequence of equal tokens", key)
			}
			seen[key] = true
		}
	})
}

// Every field of a namespace changes every key. UCM's ids depend on fewer fields.
func TestAnotherNamespaceHasOtherKeys(t *testing.T) {
	tokens := make([]uint32, 64)
	spoils := map[string]func(*Namespace){
		"model":    func(ns *Namespace) { ns.Model += "x" },
		"revision": func(ns *Namespace) { ns.Revision += "x" },
		"dtype":    func(ns *Namespace) { ns.DType = "float16" },
		"kv dtype": func(ns *Namespace) { ns.KVDType = "fp8" },
		"layers":   func(ns *Namespace) { ns.Layers++ },
		"tp size":  func(ns *Namespace) { ns.TPSize++ },
		"tp rank":  func(ns *Namespace) { ns.TPRank++ },
		"pp":       func(ns *Namespace) { ns.PPSize = 2 },
		"cp":       func(ns *Namespace) { ns.CPSize = 2 },
		"lora":     func(ns *Namespace) { ns.LoRA = "x" },
		"salt":     func(ns *Namespace) { ns.Salt = "x" },
		"blocks":   func(ns *Namespace) { ns.BlockTokens = 32 },
	}
	for kind, make := range chains {
		if kind == "ucm" {
			continue
		}
		seen := map[Key]string{}
		for what, spoil := range spoils {
			ns := withBlocks(16)
			spoil(&ns)
			chain, err := make(ns)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range chain.Keys(tokens) {
				if other := seen[key]; other != "" {
					t.Errorf("%s: another %s and another %s give one key", kind, what, other)
				}
				seen[key] = what
			}
		}
	}
}

func TestUCMRanks(t *testing.T) {
	keys := func(rank int, o UCM) []Key {
		ns := withBlocks(2)
		ns.TPRank = rank
		chain, err := NewUCMChain(ns, o)
		if err != nil {
			t.Fatal(err)
		}
		blocks := chain.AppendBlocks([]uint32{1, 2, 3, 4})
		for _, b := range blocks {
			if b.ID.String() != b.Key.String() {
				t.Errorf("UCM's id %s is key %s", b.ID, b.Key)
			}
		}
		return []Key{blocks[0].Key, blocks[1].Key}
	}
	if slices.Equal(keys(0, UCM{}), keys(1, UCM{})) {
		t.Error("two ranks share blocks")
	}
	if !slices.Equal(keys(0, UCM{MLA: true}), keys(1, UCM{MLA: true})) {
		t.Error("two ranks of an MLA model do not share blocks")
	}
	if !slices.Equal(keys(0, UCM{}), keys(0, UCM{Model: "Qwen/QwQ-32B"})) || slices.Equal(keys(0, UCM{}), keys(0, UCM{Model: "/m"})) {
		t.Error("the model given to vLLM does not change the ids")
	}
}

// The key is a function of the engine's id.
func TestKeysAreOfTheIDs(t *testing.T) {
	ns := withBlocks(2)
	each(t, ns, func(t *testing.T, chain *Chain) {
		for _, block := range chain.AppendBlocks([]uint32{1, 2, 3, 4}) {
			want := ns.Key(block.ID.Bytes())
			switch chain.scheme.(type) {
			case own, ucm:
				want = Key(block.ID.Bytes())
			}
			if block.Key != want {
				t.Errorf("the key of id %s is %s, not %s", block.ID, block.Key, want)
			}
		}
	})
}

func TestChainsRefuse(t *testing.T) {
	plain := withBlocks(16)
	for want, err := range map[string]error{
		"has no model": func() error { _, err := NewChain(Namespace{BlockTokens: 1}); return err }(),
		"do not include lora and salt": func() error {
			ns := plain
			ns.Salt = "x"
			_, err := NewUCMChain(ns, UCM{})
			return err
		}(),
		"set dtype":         func() error { _, err := NewUCMChain(Namespace{Model: "m", BlockTokens: 1}, UCM{}); return err }(),
		"RequestAware only": func() error { _, err := NewUCMChain(plain, UCM{Suffix: ":x"}); return err }(),
		"is unknown; use builtin, sha256 or sha256_cbor": func() error {
			_, err := NewLMCacheChain(plain, LMCache{Algorithm: "xxhash"})
			return err
		}(),
		"needs PYTHONHASHSEED": func() error {
			_, err := NewLMCacheChain(plain, LMCache{Algorithm: LMCacheSHA256, HashSeed: "random"})
			return err
		}(),
		"not the hash seed": func() error { _, err := NewLMCacheChain(plain, LMCache{HashSeed: "0"}); return err }(),
		"its HashSeed decides": func() error {
			_, err := NewLMCacheChain(plain, LMCache{Algorithm: LMCacheSHA256CBOR, HashSeed: "0", Root: 1})
			return err
		}(),
		"third value": func() error { _, err := NewLMCacheChain(plain, LMCache{Extra: "()"}); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	for name, make := range chains {
		for _, ns := range []Namespace{{}, {Model: "m", DType: "float16"}} {
			if _, err := make(ns); err == nil {
				t.Errorf("%s accepts the namespace %+v", name, ns)
			}
		}
	}
}

func TestTokens(t *testing.T) {
	tokens, err := Tokens([]int{0, 7, 1<<32 - 1})
	if err != nil || !slices.Equal(tokens, []uint32{0, 7, 1<<32 - 1}) {
		t.Errorf("%v, %v", tokens, err)
	}
	for _, id := range []int64{-1, 1 << 32} {
		if _, err := Tokens([]int64{5, id}); err == nil || !strings.Contains(err.Error(), "token 1 of the sequence") {
			t.Errorf("token id %d: %v", id, err)
		}
	}
}

func TestOneChainForManyGoroutines(t *testing.T) {
	each(t, withBlocks(8), func(t *testing.T, chain *Chain) {
		tokens := slices.Repeat([]uint32{1, 2, 3}, 100)
		chain.Append(tokens[:17])
		want, after := chain.Keys(tokens), chain.Clone().Append(tokens)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 20 {
					if !slices.Equal(chain.Keys(tokens), want) || !slices.Equal(chain.Clone().Append(tokens), after) {
						t.Error("the keys differ")
					}
				}
			})
		}
		all.Wait()
	})
}

// told returns all names that this process computes from the same input.
func told(t *testing.T) string {
	var text strings.Builder
	text.WriteString(qwen.Fingerprint().String() + "\n")
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range chains {
			if !yield(name) {
				return
			}
		}
	})
	for _, name := range names {
		chain, err := chains[name](withBlocks(3))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range chain.AppendBlocks([]uint32{1, 2, 3, 1 << 31, 5, 6, 7}) {
			text.WriteString(name + " " + b.Key.String() + " " + b.ID.String() + "\n")
		}
	}
	return text.String()
}

const tellTo = "KV3FS_TEST_TELL_TO"

// Another process computes the same names.
func TestOtherProcess(t *testing.T) {
	if file := os.Getenv(tellTo); file != "" {
		if err := os.WriteFile(file, []byte(told(t)), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		file := t.TempDir() + "/told"
		child := exec.Command(program, "-test.run=^TestOtherProcess$")
		child.Env = append(os.Environ(), tellTo+"="+file)
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, []byte(told(t))) {
			t.Errorf("another process computes\n%s, not\n%s", got, told(t))
		}
	}
}

// Hashing delays a request: it allocates only its result and the scratch space of a new
// chain.
func TestAllocations(t *testing.T) {
	tokens := make([]uint32, 32<<10)
	for i := range tokens {
		tokens[i] = uint32(i) * 4
	}
	each(t, withBlocks(128), func(t *testing.T, chain *Chain) {
		chain.Append(tokens[:128])
		if n := testing.AllocsPerRun(5, func() { chain.Append(tokens) }); n > 1 {
			t.Errorf("%v allocations for %d blocks", n, len(tokens)/128)
		}
	})
}

func BenchmarkKeys32k(b *testing.B) {
	tokens := make([]uint32, 32<<10)
	for i := range tokens {
		tokens[i] = uint32(i) * 4
	}
	for name, make := range chains {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			chain, err := make(withBlocks(128))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				chain.Keys(tokens)
			}
		})
	}
}
