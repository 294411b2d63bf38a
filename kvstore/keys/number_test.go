package keys

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNumbersAreKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, math.MaxInt64})).Draw(t, "number")
		u := uint64(n)
		if got, ok := Int64Key(n).Int64(); !ok || got != n {
			t.Errorf("%d became %d, %v", n, got, ok)
		}
		if got, ok := Uint64Key(u).Uint64(); !ok || got != u {
			t.Errorf("%d became %d, %v", u, got, ok)
		}
		// One number has one key, and two numbers with the same bits have two.
		if same := Int64Key(n) == Uint64Key(u); same != (n >= 0) {
			t.Errorf("the keys of %d and %d are equal: %v", n, u, same)
		}
		if _, ok := Int64Key(n).Uint64(); ok != (n >= 0) {
			t.Errorf("%d is a number without a sign: %v", n, ok)
		}
		if _, ok := Uint64Key(u).Int64(); ok != (n >= 0) {
			t.Errorf("%d is a number of 63 bits: %v", u, ok)
		}
	})
	for _, key := range []Key{{}, {15: 1}, numberKey(1, 5), numberKey(0x7f, 5)} {
		_, signed := key.Int64()
		_, unsigned := key.Uint64()
		if signed || unsigned {
			t.Errorf("key %s stands for a number", key)
		}
	}
	// Stored blocks depend on these.
	for key, want := range map[Key]string{
		Int64Key(-2):              "6b76336673236efffffffffffffffffe",
		Uint64Key(0x1234):         "6b76336673236e000000000000001234",
		Uint64Key(math.MaxUint64): "6b76336673236e00ffffffffffffffff",
	} {
		if key.String() != want {
			t.Errorf("%s, want %s", key, want)
		}
	}
}

// The keys of a chain with NumberKeys are its ids.
func TestNumberKeysOfLMCache(t *testing.T) {
	ns := withBlocks(2)
	tokens := slices.Repeat([]uint32{7, 8, 9}, 40)
	negative := 0
	for _, o := range []LMCache{{NumberKeys: true}, {Algorithm: LMCacheSHA256CBOR, HashSeed: "0", NumberKeys: true}} {
		chain, err := NewLMCacheChain(ns, o)
		if err != nil {
			t.Fatal(err)
		}
		plain := o
		plain.NumberKeys = false
		other, err := NewLMCacheChain(ns, plain)
		if err != nil {
			t.Fatal(err)
		}
		others := other.AppendBlocks(tokens)
		for i, b := range chain.AppendBlocks(tokens) {
			if b.ID != others[i].ID || b.Key == others[i].Key {
				t.Fatalf("block %d: %v and %v", i, b, others[i])
			}
			if strings.HasPrefix(b.ID.String(), "-") {
				negative++
				if n, ok := b.Key.Int64(); !ok || uint64(n) != b.ID.number() {
					t.Errorf("id %s has the key %s", b.ID, b.Key)
				}
			} else if n, ok := b.Key.Uint64(); !ok || n != b.ID.number() {
				t.Errorf("id %s has the key %s", b.ID, b.Key)
			}
		}
	}
	if negative == 0 {
		t.Error("no id is negative")
	}
	if _, err := NewLMCacheChain(ns, LMCache{Algorithm: LMCacheSHA256, HashSeed: "0", WholeDigests: true, NumberKeys: true}); err == nil {
		t.Error("whole digests became numbers")
	}
}

func TestIDsAreBounded(t *testing.T) {
	chain, err := NewLMCacheChain(withBlocks(1), LMCache{Algorithm: LMCacheSHA256, HashSeed: "0", WholeDigests: true})
	if err != nil {
		t.Fatal(err)
	}
	ids := NewIDs(withBlocks(1), 3)
	blocks := chain.AppendBlocks([]uint32{1, 2, 3, 4, 5})
	ids.Add(blocks[:3]...)
	ids.ID(blocks[0].Key) // is used last
	ids.Add(blocks[1])    // and so is this
	ids.Add(blocks[3])
	for i, want := range []bool{true, true, false, true, false} {
		id, ok := ids.ID(blocks[i].Key)
		if ok != want || ok && id != blocks[i].ID {
			t.Errorf("block %d: %s, %v", i, id, ok)
		}
	}
	// What is found in a directory is remembered as well, and does not drive out what was added.
	if key := ids.Key(blocks[4].ID); key != blocks[4].Key {
		t.Errorf("id %s has key %s", blocks[4].ID, key)
	}
	if id, ok := ids.ID(blocks[4].Key); !ok || id != blocks[4].ID {
		t.Errorf("%s, %v", id, ok)
	}
	for _, i := range []int{0, 1, 3} {
		if _, ok := ids.ID(blocks[i].Key); !ok {
			t.Errorf("block %d was added, and is forgotten for one that was found", i)
		}
	}
	ids.Add(blocks[4]) // from now on it is one of those
	if _, ok := ids.ID(blocks[0].Key); ok {
		t.Error("more than three blocks that were added are remembered")
	}
	// A directory may have any number.
	var last Key
	for n := range 2 * mostFound {
		id, _ := DigestID([]byte{1, byte(n >> 8), byte(n)})
		last = ids.Key(id)
	}
	if n := len(ids.byKey); n > 3+mostFound {
		t.Errorf("%d blocks are remembered", n)
	}
	for _, key := range []Key{last, blocks[4].Key} {
		if _, ok := ids.ID(key); !ok {
			t.Errorf("block %s is forgotten", key)
		}
	}
}
