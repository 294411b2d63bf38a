package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/classify"
	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// engineFiles are how an engine writes its n-th entry: by which names, in which order.
type engineFiles struct {
	owner  classify.Owner
	names  func(n int) []string // those that a reader needs, in its order
	rename bool                 // written under another name first
}

func engines(t *testing.T) []engineFiles {
	return []engineFiles{
		{classify.LMCache, func(n int) []string { return []string{fmt.Sprintf("lmcache/model@1@0@%x@half.data", n+1)} }, true},
		{classify.Posix, func(n int) []string { return []string{"ucm/" + blockPath(n)} }, true},
		{classify.RTPLLM, func(n int) []string { return []string{fmt.Sprintf("rtp/chat/v2/1234/no_lora/64/14/0/4/3/%d_%d", n, n)} }, false},
		{classify.GDS, func(n int) []string {
			hash := fmt.Sprintf("%x", 1<<40+n)
			dir, err := gds.Dir(hash)
			if err != nil {
				t.Error(err)
			}
			data := "gds/" + dir + "/m%401%400%40" + hash + "%40half.kvcache.safetensors"
			return []string{data + ".metadata", data}
		}, true},
		{classify.RTPLLM, func(n int) []string {
			return []string{fmt.Sprintf("rtp/chat/v2/5678/no_lora/64/14/0/1/0/%d_%d", n, n+8)}
		}, false}, // several blocks
	}
}

// contentOf is what an engine writes into a file: nobody else has it.
func contentOf(name string, size int) []byte {
	return bytes.Repeat([]byte(name+"\n"), size/(len(name)+1)+1)[:size]
}

// Engines that write and read a directory by plain system calls, while "keep" removes what is oldest, find what
// they wrote or nothing, and the directory stays within its size and what the docs allow beside it.
func TestKeepEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: writes for seconds")
	}
	const size, capacity = 48 << 10, 12 << 20
	lasts := 6 * time.Second
	if os.Getenv("KV3FS_SOAK") != "" {
		lasts = 2 * time.Minute
	}
	n, dir := seed.New(t), t.TempDir()
	k := startKeeper(t, dir, "--capacity", fmt.Sprint(capacity), "--scan-every", "1s", "--grace", "1s", "--scan-rate", "0")
	eventually(t, "the keeper", func() bool { return k.token() > 0 })
	var all sync.WaitGroup
	end := time.Now().Add(lasts)
	var hits, misses, written atomic.Int64
	for i, e := range engines(t) {
		for _, name := range e.names(7) {
			if f := classify.Classify(name, classify.Context{}); f.Owner != e.owner {
				t.Fatalf("%s is of %v, want %v", name, f.Owner, e.owner)
			}
		}
		var last atomic.Int64
		all.Go(func() { // the writer, at most 3 MiB/s
			tick := time.NewTicker(15 * time.Millisecond)
			defer tick.Stop()
			for n := 0; time.Now().Before(end); n++ {
				names := e.names(n)
				for i := len(names) - 1; i >= 0; i-- { // what makes it findable comes last
					path, to := filepath.Join(dir, names[i]), ""
					err := os.MkdirAll(filepath.Dir(path), 0o700)
					if e.rename {
						to, path = path, strings.TrimSuffix(path, ".data")+".tmp"
						if e.owner == classify.GDS {
							path += "A1b2C3d4"
						}
					}
					if err == nil {
						err = os.WriteFile(path, contentOf(names[i], size), 0o600)
					}
					if err == nil && to != "" {
						err = os.Rename(path, to)
					}
					if err != nil {
						t.Errorf("%v: %v", e.owner, err)
						return
					}
				}
				written.Add(int64(len(names)) * size)
				last.Store(int64(n))
				<-tick.C
			}
		})
		r := rand.New(rand.NewPCG(n, uint64(i)))
		all.Go(func() { // the reader
			for time.Now().Before(end) {
				for _, name := range e.names(r.IntN(int(last.Load()) + 1)) {
					got, err := os.ReadFile(filepath.Join(dir, name))
					if errors.Is(err, fs.ErrNotExist) {
						misses.Add(1)
						break
					}
					if err != nil {
						t.Errorf("%v: %v", e.owner, err)
						return
					}
					if len(got) < size && !e.rename {
						break // it is being written, under its name
					}
					if !bytes.Equal(got, contentOf(name, size)) {
						t.Errorf("%s: wrong bytes", name)
						return
					}
					hits.Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	var most int64
	for time.Now().Before(end) {
		most = max(most, blockBytes(dir))
		time.Sleep(100 * time.Millisecond)
	}
	all.Wait()
	eventually(t, "the limit", func() bool { return blockBytes(dir) < capacity+1<<20 })
	t.Logf("%d MiB written, at most %d KiB there, %d more than the capacity; %d files read right, %d misses, %d removed", written.Load()>>20, most>>10, (most-capacity)>>10, hits.Load(), misses.Load(), len(k.said(saidRemoved)))
	if hits.Load() == 0 || written.Load() > 2*capacity && misses.Load() == 0 {
		t.Errorf("%d hits and %d misses", hits.Load(), misses.Load())
	}
	// No half of a pair is left that a reader would take for whole.
	for n := range 20000 {
		names := engines(t)[3].names(n)
		_, side := os.Lstat(filepath.Join(dir, names[0]))
		_, data := os.Lstat(filepath.Join(dir, names[1]))
		if side == nil && data != nil {
			t.Errorf("%s is there without its data", names[0])
		}
	}
	k.stop()
}
