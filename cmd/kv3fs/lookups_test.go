package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

// lookingEngine asks for blocks, saves and loads them as one engine does.
type lookingEngine struct {
	name  string // classify.Owner
	model string

	lookup func(block int) bool // nil: a service knows what there is
	save   func(block int)
	load   func(block int)

	hits, misses int64
	longest      time.Duration // of what it did: on a machine that stands still for long, the daemon cannot tell what belongs together
}

func (e *lookingEngine) timed(do func()) {
	began := time.Now()
	do()
	e.longest = max(e.longest, time.Since(began))
}

// callers are how engines call the mount.
type callers struct {
	t       *testing.T
	mount   *usrbio.Mount
	iov     *usrbio.Iov
	in, out *usrbio.Ring
}

const (
	lookedPieceBytes = 64 << 10
	lookedPieces     = 3
)

func (c callers) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c callers) exists(path string) bool {
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	return err == nil
}

// ring moves pieces of a file that is open, through a ring.
func (c callers) ring(f *os.File, write bool, pieces ...int) {
	c.t.Helper()
	file, err := c.mount.Register(c.t.Context(), f)
	c.must(err)
	ring := c.in
	if write {
		ring = c.out
	}
	for _, piece := range pieces {
		request := []usrbio.Request{{File: file, FileOffset: int64(piece) * lookedPieceBytes, Iov: c.iov, Bytes: lookedPieceBytes}}
		c.must(ring.Do(c.t.Context(), request))
		if request[0].Result != lookedPieceBytes {
			c.t.Fatalf("piece %d of %s: %d", piece, f.Name(), request[0].Result)
		}
	}
	c.must(file.Close(context.Background()))
}

func (c callers) open(path string, flags int) *os.File {
	c.t.Helper()
	f, err := os.OpenFile(path, flags, 0o644)
	c.must(err)
	return f
}

func (c callers) mkdir(dir string) { c.must(os.MkdirAll(dir, 0o755)) }

// ringFile opens a file, moves pieces through a ring and closes it.
func (c callers) ringFile(path string, flags int, write bool, pieces ...int) {
	c.t.Helper()
	f := c.open(path, flags)
	c.ring(f, write, pieces...)
	c.must(f.Close())
}

// plainFile is ringFile by system calls.
func (c callers) plainFile(path string, flags int, write bool, pieces ...int) {
	c.t.Helper()
	f, buf := c.open(path, flags), make([]byte, lookedPieceBytes)
	for _, piece := range pieces {
		var err error
		if at := int64(piece) * lookedPieceBytes; write {
			_, err = f.WriteAt(buf, at)
		} else {
			_, err = f.ReadAt(buf, at)
		}
		c.must(err)
	}
	c.must(f.Close())
}

// rename is rename(2): os.Rename would look at the new name first.
func (c callers) rename(from, to string) { c.must(unix.Rename(from, to)) }

const (
	lookedRead  = os.O_RDONLY
	lookedWrite = os.O_WRONLY | os.O_CREATE
	lookedBoth  = os.O_RDWR | os.O_CREATE
)

// engines returns one of each, with its files below dir.
func (c callers) engines(dir string) []*lookingEngine {
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	chunk := func(model string, block int) string {
		return fmt.Sprintf("org-SEP-%s@1@0@%016x@bfloat16", model, 0x1a2b3c4d5e6f0000+block)
	}
	object := func(block int) string { return fmt.Sprintf("objects@0x01000100@0@%016x", 0x2a2b3c4d5e6f0000+block) }
	for _, sub := range []string{"lmcache", "lmcache-fs/tmp", "native", "l2fs", "ucm/.temp"} {
		c.mkdir(at(sub))
	}
	gdsFile := func(block int) string {
		hash := int64(0x1234567890ab0000 + block)
		text := strconv.FormatInt(hash, 10)
		return at("gds", text[:2], text[2:4], fmt.Sprintf("gdsmodel%%401%%400%%40%x%%40bfloat16.kvcache.safetensors", hash))
	}
	c.mkdir(filepath.Dir(gdsFile(0))) // a directory that is not there hides what is missing in it
	key := func(block int) string { return fmt.Sprintf("%02x%030x", 16*(block%16), block) }
	ds3fs := func(block int) string { return at("ucm", key(block)[:2], key(block)) }
	posix := func(block int) string { return at("posix", key(block)[:3], key(block)) }
	for block := range 16 { // Posix has all its directories from the start
		c.mkdir(filepath.Dir(posix(block)))
	}
	rtp := func(block int) string {
		return at("rtp/biz/v2/123/no_lora/64/1/0/1/0", fmt.Sprintf("%d_%d", 1000+block, 1000+block))
	}
	c.mkdir(filepath.Dir(rtp(0)))
	kvcm := func(block int) string { return at("kvcm/instance/tp0", fmt.Sprintf("%x", 0x7000+block)) }
	c.mkdir(filepath.Dir(kvcm(0)))

	remote := func(block int) string { return at("lmcache", chunk("remote", block)+".data") }
	plain := func(block int) string { return at("lmcache-fs", chunk("plain", block)+".data") }
	native := func(block int) string { return at("native", object(block)+".data") }
	l2fs := func(block int) string { return at("l2fs", "fs-"+object(block)+".data") }
	return []*lookingEngine{
		{ // the connector for 3FS: stat, temporary file, rename while it is open
			name: "lmcache", model: "org/remote",
			lookup: func(b int) bool { return c.exists(remote(b)) },
			save: func(b int) {
				temp := at("lmcache", chunk("remote", b)+".tmp")
				f := c.open(temp, lookedWrite|os.O_TRUNC)
				c.ring(f, true, 0, 1, 2)
				c.rename(temp, remote(b))
				c.must(f.Close())
			},
			load: func(b int) { c.ringFile(remote(b), lookedRead, false, 0, 1, 2) },
		},
		{ // the connector for file systems, with its directory of temporary files
			name: "lmcache", model: "org/plain",
			lookup: func(b int) bool { return c.exists(plain(b)) },
			save: func(b int) {
				temp := at("lmcache-fs/tmp", filepath.Base(plain(b)))
				c.plainFile(temp, lookedWrite|os.O_TRUNC, true, 0, 1, 2)
				c.rename(temp, plain(b))
			},
			load: func(b int) { c.plainFile(plain(b), lookedRead, false, 0, 1, 2) },
		},
		{ // the native adapter, without its memory of names: no temporary file
			name: "lmcache-object", model: "objects",
			lookup: func(b int) bool { return c.exists(native(b)) },
			save:   func(b int) { c.ringFile(native(b), lookedWrite, true, 0, 1, 2) },
			load:   func(b int) { c.ringFile(native(b), lookedRead, false, 0, 1, 2) },
		},
		{ // the adapter fs, which looks again before it saves
			name: "lmcache-object", model: "fs-objects",
			lookup: func(b int) bool { return c.exists(l2fs(b)) },
			save: func(b int) {
				if !c.exists(l2fs(b)) {
					c.plainFile(l2fs(b)+".tmp", lookedWrite, true, 0, 1, 2)
					c.rename(l2fs(b)+".tmp", l2fs(b))
				}
			},
			load: func(b int) { c.plainFile(l2fs(b), lookedRead, false, 0, 1, 2) },
		},
		{ // the GDS backend: a side file says that the data is there
			name: "lmcache-gds", model: "gdsmodel",
			lookup: func(b int) bool { return c.exists(gdsFile(b) + ".metadata") },
			save: func(b int) {
				c.mkdir(filepath.Dir(gdsFile(b)))
				for _, end := range []string{"", ".metadata"} {
					temp := gdsFile(b) + end + ".tmpAbcd1234"
					c.plainFile(temp, lookedBoth, true, 0, 1)
					c.rename(temp, gdsFile(b)+end)
				}
			},
			load: func(b int) {
				c.plainFile(gdsFile(b)+".metadata", lookedRead, false, 0)
				c.plainFile(gdsFile(b), os.O_RDWR, false, 1)
			},
		},
		{ // UCM's Ds3fs store: a descriptor for each shard
			name:   "ucm-ds3fs",
			lookup: func(b int) bool { return c.exists(ds3fs(b)) },
			save: func(b int) {
				temp := at("ucm/.temp", key(b))
				for shard := range lookedPieces {
					c.ringFile(temp, lookedWrite, true, shard)
				}
				c.mkdir(filepath.Dir(ds3fs(b)))
				c.rename(temp, ds3fs(b))
			},
			load: func(b int) {
				for _, shard := range []int{2, 0, 1} {
					c.ringFile(ds3fs(b), lookedRead, false, shard)
				}
			},
		},
		{ // UCM's Posix store: the same by system calls, and it touches what it has found
			name: "ucm-posix",
			lookup: func(b int) bool {
				there := c.exists(posix(b))
				if there {
					c.must(os.Chtimes(posix(b), time.Time{}, time.Now()))
				}
				return there
			},
			save: func(b int) {
				for shard := range lookedPieces {
					c.plainFile(posix(b)+".tmp", lookedWrite, true, shard)
				}
				c.rename(posix(b)+".tmp", posix(b))
			},
			load: func(b int) {
				for shard := range lookedPieces {
					c.plainFile(posix(b), lookedRead, false, shard)
				}
			},
		},
		{ // RTP-LLM's own tier: what is larger than nothing is there
			name: "rtp-llm", model: "123",
			lookup: func(b int) bool { return c.exists(rtp(b)) },
			save: func(b int) {
				c.mkdir(filepath.Dir(rtp(b)))
				f := c.open(rtp(b), lookedBoth)
				c.ring(f, true, 0, 1, 2)
				c.must(f.Sync())
				c.must(f.Close())
			},
			load: func(b int) {
				c.exists(rtp(b))
				c.ringFile(rtp(b), os.O_RDWR, false, 0, 1, 2)
			},
		},
		{ // KVCM, whose service knows what there is
			name: "kvcm",
			save: func(b int) {
				f := c.open(kvcm(b), lookedBoth)
				c.ring(f, true, 0, 1, 2)
				c.must(f.Sync())
				c.must(f.Close())
			},
			load: func(b int) {
				c.exists(kvcm(b))
				c.ringFile(kvcm(b), os.O_RDWR, false, 0, 1, 2)
			},
		},
	}
}

// lookupCounts returns what the metrics say of each engine and model.
func lookupCounts(t *testing.T, at string) map[[2]string][2]int64 {
	t.Helper()
	_, text := ask(t, at+"/metrics")
	all := map[[2]string][2]int64{}
	for _, m := range regexp.MustCompile(`(?m)^kv3fs_lookup_(hits|misses)_total\{engine="([^"]*)",model="([^"]*)"\} (\S+)$`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		k := [2]string{m[2], m[3]}
		counts := all[k]
		counts[map[string]int{"hits": 0, "misses": 1}[m[1]]] = int64(n)
		all[k] = counts
	}
	return all
}

// The metrics say how many blocks each engine has found and missed, from how it calls the mount and its rings: whether it asks
// before it reads, whether it has temporary files, and in how many pieces it moves a block.
func TestHitRates(t *testing.T) {
	requireFUSE(t)
	d := runUntil(t, binary(t), "msg=serving ", "serve", "--data", t.TempDir(), "--mount", filepath.Join(t.TempDir(), "mnt"), "--drain", "1s", "--pages-listen", "off", "--admin-listen", "127.0.0.1:0")
	at := adminURL(t, d)
	point := regexp.MustCompile(`msg=serving .*mount=(\S+)`).FindStringSubmatch(d.said())[1]
	m, err := usrbio.Open(t.Context(), point)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c := callers{t: t, mount: m}
	c.iov, err = m.NewIov(t.Context(), lookedPieceBytes, usrbio.IovOptions{})
	c.must(err)
	c.in, err = m.NewRing(t.Context(), usrbio.RingOptions{Entries: 4})
	c.must(err)
	c.out, err = m.NewRing(t.Context(), usrbio.RingOptions{Entries: 4, Write: true})
	c.must(err)
	engines := c.engines(point)

	const saved, asked = 5, 9
	for _, e := range engines {
		for block := range saved {
			if e.lookup != nil && !e.lookup(block) {
				e.misses++
			}
		}
	}
	// They compute what they have missed. Who saves a block sooner, without a temporary file, cannot be told from who only saves it.
	time.Sleep(1200 * time.Millisecond)
	for _, e := range engines {
		for block := range saved {
			e.timed(func() { e.save(block) })
		}
	}
	for range 2 {
		for _, e := range engines {
			for block := range asked {
				switch there := block < saved; {
				case e.lookup == nil && !there:
				case e.lookup != nil && e.lookup(block) != there:
					t.Errorf("%s: block %d is there: %v", e.name, block, !there)
				case !there:
					e.misses++
				default:
					e.timed(func() { e.load(block) })
					e.hits++
				}
			}
		}
		time.Sleep(1200 * time.Millisecond) // what is read of a block within a second may be one load of it
	}
	for _, e := range engines { // the second round missed the same names again, within a minute
		if e.lookup != nil {
			e.misses -= asked - saved
		}
	}

	var wrong []string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		wrong = nil
		got := lookupCounts(t, at)
		for _, e := range engines {
			is, want := got[[2]string{e.name, e.model}], [2]int64{e.hits, e.misses}
			switch {
			case is == want:
			case e.longest > 900*time.Millisecond && is[0] >= want[0]:
				t.Logf("%s %s: %v, want %v, but one call took %v", e.name, e.model, is, want, e.longest)
			default:
				wrong = append(wrong, fmt.Sprintf("%s %q: hits and misses are %v, want %v", e.name, e.model, is, want))
			}
			delete(got, [2]string{e.name, e.model})
		}
		for k, n := range got {
			if n != [2]int64{} {
				wrong = append(wrong, fmt.Sprintf("%q: %v", k, n))
			}
		}
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	for _, w := range wrong {
		t.Error(w)
	}
}
