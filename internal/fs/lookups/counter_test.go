package lookups

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

const (
	chunk  = "kv/m@1@0@1a2b3c4d5e6f7081@bfloat16.data"
	ds3fs  = "ucm/ab/ab0123456789abcdef0123456789abcd"
	sides  = "gds/13/11/m%401%400%401234567890abcdef%40bfloat16.kvcache.safetensors"
	rtpllm = "rtp/biz/v2/123/no_lora/64/1/0/1/0/11_12"
)

// clockOf returns a counter and what lets its time pass.
func clockOf() (*Counter, func(time.Duration)) {
	now := time.Unix(1e9, 0)
	return newCounter(func() time.Time { return now }), func(d time.Duration) { now = now.Add(d) }
}

// counts returns what a counter has counted as text: engine hits/misses, by engine.
func counts(c *Counter) string {
	var all []string
	now, _ := c.Counts()
	for _, n := range now {
		if n.Hits+n.Misses > 0 {
			all = append(all, fmt.Sprintf("%s %d/%d", n.Engine, n.Hits, n.Misses))
		}
	}
	return strings.Join(all, ", ")
}

func TestMisses(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(c *Counter, pass func(time.Duration))
		want string
	}{
		"a name that is not there": {func(c *Counter, _ func(time.Duration)) { c.Missing(chunk, 0) }, "lmcache 0/1"},
		"asked for again and again": {func(c *Counter, pass func(time.Duration)) {
			for range 10 {
				c.Missing(chunk, 0)
				pass(3 * time.Second)
			}
		}, "lmcache 0/1"},
		"asked for again, much later": {func(c *Counter, pass func(time.Duration)) {
			c.Missing(chunk, 0)
			pass(askTime + time.Second)
			c.Missing(chunk, 0)
		}, "lmcache 0/2"},
		"looked up to be made": {func(c *Counter, _ func(time.Duration)) {
			c.Missing(chunk, 0)
			c.Making(chunk, 0, true)
		}, ""},
		"asked for, and at once looked up to be made": {func(c *Counter, _ func(time.Duration)) {
			c.Missing(chunk, 0)
			c.Missing(chunk, 0)
			c.Making(chunk, 0, true)
		}, "lmcache 0/1"},
		"asked for, computed, asked for, made": {func(c *Counter, pass func(time.Duration)) {
			c.Missing(chunk, 0)
			pass(20 * time.Second)
			c.Missing(chunk, 0)
			c.Missing(chunk, 0)
			c.Making(chunk, 0, true)
		}, "lmcache 0/1"},
		"asked for, counted, made, evicted, asked for": {func(c *Counter, pass func(time.Duration)) {
			c.Missing(chunk, 0)
			pass(countTime + time.Second)
			c.Counts()
			c.Making(chunk, 0, true)
			c.Missing(chunk, 0)
		}, "lmcache 0/2"},
		"asked for, and made by a kernel that knows that there is none": {func(c *Counter, pass func(time.Duration)) {
			c.Missing(chunk, 0)
			pass(makeTime + time.Millisecond)
			c.Making(chunk, 0, false)
		}, "lmcache 0/1"},
		"looked up and made at once": {func(c *Counter, _ func(time.Duration)) {
			c.Missing(chunk, 0)
			c.Making(chunk, 0, false)
		}, ""},
		"the side file, and then the data": {func(c *Counter, _ func(time.Duration)) {
			c.Missing(sides+".metadata", 0)
			c.Missing(sides, 0)
		}, "lmcache-gds 0/1"},
		"the data and the side file are made": {func(c *Counter, _ func(time.Duration)) {
			c.Missing(sides, 0)
			c.Making(sides, 0, true)
			c.Missing(sides+".metadata", 0)
			c.Making(sides+".metadata", 0, true)
		}, ""},
		"temporary and unknown files": {func(c *Counter, _ func(time.Duration)) {
			c.Missing(strings.TrimSuffix(chunk, "data")+"tmp", 0)
			c.Missing("notes.txt", 0)
			c.Missing("hf3fs_vllm_data_file_0", 0)
		}, ""},
		"a directory of blocks that is not there": {func(c *Counter, _ func(time.Duration)) {
			c.Missing("ucm/cd", 0) // nothing is known of ucm
			c.Found("ucm/.temp", 0)
			c.Missing("ucm/ef", 0)
			c.Missing("ucm/01", 0)
			c.Making("ucm/01", 0, true)
			c.Missing("ucm/readme", 0)
		}, "ucm-ds3fs 0/1"},
		"a directory below one that is": {func(c *Counter, _ func(time.Duration)) {
			c.ClassOf(sides, 0)
			c.Missing("gds/13/56", 0)
			c.Missing("gds/78", 0)
		}, "lmcache-gds 0/2"},
		"an item": {func(c *Counter, _ func(time.Duration)) { c.Missing(rtpllm, 0) }, "rtp-llm 0/1"},
	} {
		t.Run(name, func(t *testing.T) {
			counter, pass := clockOf()
			c.do(counter, pass)
			pass(countTime + time.Millisecond)
			if got := counts(counter); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			pass(2 * askTime)
			if got := counts(counter); got != c.want {
				t.Errorf("later %q, want %q", got, c.want)
			}
		})
	}
}

func TestHits(t *testing.T) {
	c, pass := clockOf()
	c.Found("ucm/.temp", 0)
	for _, path := range []string{chunk, ds3fs, sides} {
		class := c.ClassOf(path, 0)
		class.FromStart()
		class.Opened()
	}
	for _, path := range []string{sides + ".metadata", strings.TrimSuffix(chunk, "data") + "tmp", "ucm/.temp/ab0123456789abcdef0123456789abcd", "notes.txt"} {
		if class := c.ClassOf(path, 0); class != nil {
			t.Errorf("%s counts", path)
		}
	}
	posix := "posix" + strings.TrimPrefix(ds3fs, "ucm")
	for range 3 { // the parts of one block, each through its own descriptor
		c.ClassOf(posix, 0).Opened()
		pass(shardTime / 2)
	}
	pass(shardTime)
	c.ClassOf(posix, 0).Opened()
	if got, want := counts(c), "lmcache 2/0, lmcache-gds 2/0, ucm-ds3fs 2/0, ucm-posix 2/0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var none *Counter
	none.ClassOf(chunk, 0).FromStart()
	none.ClassOf(chunk, 0).Opened()
	none.Missing(chunk, 0)
	none.Making(chunk, 0, true)
	none.Found(chunk, 0)
	if all, _ := none.Counts(); all != nil {
		t.Error("a nil counter has counted")
	}
}

// However many models, names and parts there are, memory is bounded, and no look-up is lost.
func TestBounds(t *testing.T) {
	c, pass := clockOf()
	const models, names = 3 * mostRows, mostMissing/mostRows + 10
	for m := range models {
		for n := range names {
			c.Missing(fmt.Sprintf("kv/m\xff%d\n@1@0@%x@half.data", m, n), 0)
			c.ClassOf(fmt.Sprintf("0/%032x", m*names+n), 0)
		}
	}
	if len(c.missing) > mostMissing || len(c.asked) > mostMissing {
		t.Errorf("%d names are remembered, %d asked", len(c.missing), len(c.asked))
	}
	pass(2 * askTime)
	all, _ := c.Counts()
	if len(all) > mostRows+1 {
		t.Errorf("%d rows", len(all))
	}
	var misses int64
	for _, n := range all {
		misses += n.Misses
		if !utf8.ValidString(n.Model) {
			t.Errorf("the model %q is no text", n.Model)
		}
	}
	if misses != models*names {
		t.Errorf("%d misses of %d", misses, models*names)
	}
	if !slices.ContainsFunc(all, func(n Count) bool { return n.Engine == "" }) {
		t.Error("there are no others")
	}
	for n := range 2 * mostParts {
		c.goesOn(uint64(n))
	}
	if len(c.parts) > mostParts {
		t.Errorf("%d parts are remembered", len(c.parts))
	}
	for n := range 2 * mostRoots {
		c.Found(fmt.Sprintf("%d/.temp", n), 0)
	}
	of, _, _ := c.roots.of.All()
	marks, _, _ := c.roots.marks.All()
	if len(of) > mostRoots || len(marks) > mostRoots {
		t.Errorf("%d roots, %d marks", len(of), len(marks))
	}
}

// A user who looks up invented names, or makes directories, hides nobody else's engine.
func TestInventedNames(t *testing.T) {
	c, pass := clockOf()
	const mallory, engine = 65534, 1000
	for i := range 2 * mostRows {
		c.Missing(fmt.Sprintf("kv/evil%d@1@0@1a2b3c4d5e6f7081@half.data", i), mallory)
	}
	for i := range 2 * mostRoots {
		c.Found(fmt.Sprintf("evil%d/.temp", i), mallory)
	}
	c.Missing(chunk, engine)
	c.Found("ucm/.temp", engine)
	c.Missing("ucm/ef", engine)
	c.ClassOf(sides, engine).FromStart()
	pass(2 * askTime)
	got := map[Count]bool{}
	all, _ := c.Counts()
	for _, n := range all {
		got[n] = true
	}
	for _, want := range []Count{{"lmcache", "m", 0, 1}, {"ucm-ds3fs", "", 0, 1}, {"lmcache-gds", "m", 1, 0}} {
		if !got[want] {
			t.Errorf("%+v is not in %+v", want, got)
		}
	}
}
