package blocksoak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore"
)

// Several processes save, load and delete blocks in one place while they damage it: a
// hundred thousand times a byte of the data, as often a byte of what describes the data,
// and now and then whole pieces and files. Whatever is loaded is what one of the
// processes has saved under that key, and was verified.
func TestDamage(t *testing.T) {
	d := startDaemon(t)
	layout := kvstore.Layout{BlockBytes: 4 << 10, ShardBytes: 512}
	for _, front := range []string{"", "Cache|"} {
		for name, o := range openings(front, t.TempDir(), d, layout, 8<<20) {
			t.Run(name, func(t *testing.T) { damageAll(t, d, name, o) })
		}
	}
}

const (
	// stressBlocks is how many blocks there are.
	stressBlocks = 512

	// stressTime is the most that a chain may take.
	stressTime = 5 * time.Minute
)

func damageAll(t *testing.T, d *daemon, name string, o opening) {
	processes := 3
	p := places{Root: o.Config.StorageBackends, Layout: kvstore.Layout{BlockBytes: o.Config.BlockSize, ShardBytes: o.Config.ShardSize}}
	switch {
	case o.Config.PagesFile != "":
		p.Root, p.Kind = o.Config.PagesFile, pagesKind
	case o.Config.SegmentBytes > 0:
		p.Kind = segmentKind
		processes = 1 // a directory belongs to one
	case p.Root == d.mount:
		p.Root, p.Kind = d.data, ds3fsKind // the files behind the mount
		emptyMount(t, d)
	default:
		p.Kind = posixKind
	}
	o.Config.TimeoutMs = 50_000 // no machine is that slow
	o.Config.ShareBufferEnable = o.Config.CacheBufferBytes > 0
	o.Config.UniqueID = fmt.Sprintf("blocksoak-%d", os.Getpid())
	if p.Kind != pagesKind { // a page file belongs to one model
		other := o
		other.Config.Namespace.Model = "kv3fs/another"
		other.Config.UniqueID += "-other"
		saveAll(t, other)
	}
	saveAll(t, o)
	if err := p.remember(); err != nil {
		t.Fatal(err)
	}

	random := seed.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), stressTime)
	defer cancel()
	var all sync.WaitGroup
	reports := make([]report, processes)
	for i := range processes {
		arg, err := json.Marshal(damageOrder{
			Opening: o, Places: p, Seed: random + uint64(i), Variant: i,
			Data: flips / processes, Index: flips / processes,
		})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), damageEnv+"="+string(arg))
			var out, said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &said
			err := cmd.Run()
			if err == nil {
				err = json.Unmarshal(out.Bytes(), &reports[i])
			}
			if err != nil {
				t.Errorf("process %d: %v\n%s%s", i, err, &out, &said)
			}
		})
	}
	all.Wait()
	var sum report
	for _, r := range reports {
		sum.add(r)
	}
	t.Logf("%d processes: %+v", processes, sum)
	if t.Failed() {
		return
	}
	if sum.Loaded == 0 || sum.Missed == 0 || sum.Corrupt == 0 {
		t.Error("there is too much damage or too little")
	}
	if sum.Mixed > 0 {
		t.Errorf("%d shards are of another variant than the rest of their block", sum.Mixed)
	}
	healed(t, o, p)
}

// saveAll saves all blocks.
func saveAll(t *testing.T, o opening) {
	t.Helper()
	s, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < stressBlocks; n += stressBatch {
		if err := saveVariant(t.Context(), s, n, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// healed checks that everything can be saved again once the damage was found, and is there
// in a store that is opened then. Damage may have to be found more than once: not while a
// page's lease has ended, or the kernel remembers what was at a name before.
func healed(t *testing.T, o opening, p places) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		s, err := p.open(o, &report{})
		if err != nil {
			t.Fatal(err)
		}
		var r report
		for n := 0; n < stressBlocks; n += stressBatch {
			if err := loadVariants(t.Context(), s, n, &r); err != nil {
				t.Error(err)
			}
		}
		r.count(s.Stats())
		if r.Missed > 0 && p.Kind == segmentKind { // what is saved may evict what was there
			_, err = s.Purge(t.Context())
		}
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		if r.Unverified > 0 || r.Missed > 0 && time.Now().After(end) {
			t.Errorf("after everything was saved again: %+v", r)
		}
		if r.Missed == 0 || t.Failed() {
			return
		}
		saveAll(t, o)
	}
}

// emptyMount removes what an earlier chain has left.
func emptyMount(t *testing.T, d *daemon) {
	t.Helper()
	all, err := os.ReadDir(d.mount)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Name() == "3fs-virt" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.mount, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}
