package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var errModel = errors.New("disk on fire")

// model is what is known of a chain whose next store sometimes fails: which blocks must
// be there and which cannot be.
type model struct {
	*rapid.T
	s       *cache.Store
	next    *shelf
	known   map[kv.Key]bool // whole in next, from the start or after a flush without error
	saved   map[kv.Key]bool // saved in part at least: they may be there
	hinted  map[kv.Key]bool // a fetch from before next's failures changed may still be under way
	wasBad  map[kv.Key]bool
	mu      sync.Mutex
	failing map[kv.Key]string // what next does with a block: "load", "save", "miss"
}

const modelKeys = 40

func (m *model) key(label string) kv.Key { return key(rapid.IntRange(0, modelKeys-1).Draw(m.T, label)) }

func (m *model) some(label string) []kv.Key {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.Key { return key(rapid.IntRange(0, modelKeys-1).Draw(t, "key")) }), 1, 12).Draw(m.T, label)
}

// before is next's mood.
func (m *model) before(s kv.Shard, save bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch f := m.failing[s.Key]; {
	case save && !right(s):
		panic(fmt.Sprintf("block %s, shard %d was written behind with wrong bytes", s.Key, s.Index))
	case f == "load" && !save, f == "save" && save:
		return errModel
	case f == "miss" && !save:
		return kv.ErrMiss
	}
	return nil
}

func (m *model) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	m.Cleanup(cancel)
	return ctx
}

// shards are those of blocks, or some of them, in whatever order.
func (m *model) shards(all []kv.Key) []kv.Shard {
	shards := blocks(small, all...)
	if rapid.Bool().Draw(m.T, "by layer") {
		var layers []kv.Shard
		for i := range small.Shards() {
			for n := range all {
				layers = append(layers, shards[n*small.Shards()+i])
			}
		}
		shards = layers
	}
	return shards[:rapid.IntRange(1, len(shards)).Draw(m.T, "shards")]
}

func (m *model) load() {
	all := m.some("keys")
	shards := m.shards(all)
	t, err := m.s.Load(m.ctx(), shards)
	if err != nil {
		m.Fatal(err)
	}
	cancelled := rapid.IntRange(0, 5).Draw(m.T, "cancel") == 0
	if cancelled {
		t.Cancel()
	}
	for i, err := range t.All() {
		k := shards[i].Key
		m.mu.Lock()
		failing := m.failing[k]
		m.mu.Unlock()
		switch {
		case err == nil:
			if !right(shards[i]) {
				m.Fatalf("wrong bytes in block %s, shard %d", k, shards[i].Index)
			}
			if !m.known[k] && !m.saved[k] {
				m.Fatalf("block %s was loaded, and never saved", k)
			}
		case cancelled && errors.Is(err, context.Canceled):
		case errors.Is(err, kv.ErrMiss):
			if m.known[k] && failing != "miss" && !(m.hinted[k] && m.wasBad[k]) {
				m.Fatalf("block %s is in next and was missed", k)
			}
		case errors.Is(err, errModel) && (failing == "load" || m.hinted[k] && m.wasBad[k]):
		default:
			m.Fatalf("block %s: %v", k, err)
		}
	}
}

func (m *model) save() {
	shards := filled(m.shards(m.some("keys")))
	for _, s := range shards {
		m.saved[s.Key] = true
	}
	t, err := m.s.Save(m.ctx(), shards)
	if err != nil {
		m.Fatal(err)
	}
	cancelled := rapid.IntRange(0, 5).Draw(m.T, "cancel") == 0
	if cancelled {
		t.Cancel()
	}
	for i, err := range t.All() {
		switch {
		case err == nil, cancelled && errors.Is(err, context.Canceled), errors.Is(err, kv.ErrFull):
		case errors.Is(err, errModel): // it went directly to next
		default:
			m.Fatalf("block %s: %v", shards[i].Key, err)
		}
	}
}

// flush saves whole blocks; after it they are in next, if next takes them.
func (m *model) flush() {
	all := m.some("keys")
	shards := filled(blocks(small, all...))
	t, err := m.s.Save(m.ctx(), shards)
	if err != nil {
		m.Fatal(err)
	}
	stored := map[kv.Key]bool{}
	for _, k := range all {
		stored[k], m.saved[k] = true, true
	}
	for i, err := range t.All() {
		if err != nil {
			stored[shards[i].Key] = false
		}
	}
	if err := m.s.Flush(m.ctx()); err != nil {
		if !errors.Is(err, errModel) {
			m.Fatalf("flush: %v", err)
		}
		return
	}
	for k, ok := range stored {
		if !ok {
			continue
		}
		if !m.next.things.has(k, small) {
			m.Fatalf("block %s was flushed and is not in next", k)
		}
		m.known[k] = true
	}
}

func (m *model) lookup() {
	all := m.some("keys")
	found := make([]bool, len(all))
	if err := m.s.Lookup(m.ctx(), all, found); err != nil {
		m.Fatal(err)
	}
	n, err := m.s.LookupPrefix(m.ctx(), all)
	if err != nil {
		m.Fatal(err)
	}
	for i, k := range all {
		if m.known[k] && !found[i] {
			m.Fatalf("block %s is in next and was not found", k)
		}
		if !m.known[k] && !m.saved[k] && found[i] {
			m.Fatalf("block %s was found, and never saved", k)
		}
		if i < n && !m.known[k] && !m.saved[k] {
			m.Fatalf("block %s is part of a prefix, and was never saved", k)
		}
	}
}

func (m *model) remove() {
	all := m.some("keys")
	if err := m.s.Delete(m.ctx(), all); err != nil {
		m.Fatalf("delete: %v", err)
	}
	found := make([]bool, len(all))
	if err := m.s.Lookup(m.ctx(), all, found); err != nil {
		m.Fatal(err)
	}
	for i, k := range all {
		if found[i] {
			m.Fatalf("block %s was deleted and is found", k)
		}
		delete(m.known, k)
	}
}

func (m *model) list() {
	seen := map[kv.Key]bool{}
	for k, err := range m.s.Keys(m.ctx()) {
		switch {
		case err != nil:
			m.Fatalf("list: %v", err)
		case seen[k]:
			m.Fatalf("block %s is listed twice", k)
		case !m.known[k] && !m.saved[k]:
			m.Fatalf("block %s is listed, and was never saved", k)
		}
		seen[k] = true
	}
	for k := range m.known {
		if !seen[k] {
			m.Fatalf("block %s is in next and was not listed", k)
		}
	}
}

func (m *model) prefetch() {
	all := m.some("keys")
	for _, k := range all {
		m.hinted[k] = true
	}
	m.s.Prefetch(all)
}

// mood changes what next does with a block.
func (m *model) mood() {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.key("key")
	if f := rapid.SampledFrom([]string{"", "", "load", "save", "miss"}).Draw(m.T, "mood"); f != "" {
		m.failing[k], m.wasBad[k] = f, true
	} else {
		clear(m.failing)
	}
}

// Whatever next does, and however little memory there is, bytes are right, blocks that
// next has are found and loaded, and blocks that were never saved are not.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			T: t, known: map[kv.Key]bool{}, saved: map[kv.Key]bool{},
			hinted: map[kv.Key]bool{}, wasBad: map[kv.Key]bool{}, failing: map[kv.Key]string{},
		}
		m.next = newShelf(small, newThings())
		m.next.before(m.before)
		for _, k := range keys(0, 10) {
			m.next.things.fill(small, k)
			m.known[k] = true
		}
		s, err := cache.New(m.next, cache.Options{
			CapacityBytes:     4096 * int64(rapid.SampledFrom([]int{4, 5, 9, 30, 100}).Draw(t, "slots")),
			Streams:           rapid.IntRange(1, 3).Draw(t, "streams"),
			WaitingQueueDepth: rapid.SampledFrom([]int{1, 3, 100}).Draw(t, "queue"),
			Policy:            rapid.SampledFrom([]string{"lru", "aged"}).Draw(t, "policy"),
			Timeout:           10 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		m.s = s
		defer s.Close()
		step := func(fn func()) func(*rapid.T) { return func(t *rapid.T) { m.T = t; fn() } }
		t.Repeat(map[string]func(*rapid.T){
			"load": step(m.load), "load again": step(m.load), "save": step(m.save), "flush": step(m.flush),
			"lookup": step(m.lookup), "mood": step(m.mood),
			"delete": step(m.remove), "list": step(m.list),
			"prefetch": step(m.prefetch),
		})
		m.mu.Lock()
		clear(m.failing)
		m.mu.Unlock()
		for k := range m.known {
			if !m.hinted[k] {
				load(t, s, k)
			}
		}
	})
}
