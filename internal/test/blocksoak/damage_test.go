package blocksoak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore"
)

// Several processes save, load and delete blocks in one place while they damage it and are
// killed: many times a byte of the data, as often a byte of what describes the data, and now
// and then whole pieces and files. Whatever is loaded is what one of the processes has saved
// under that key, and was verified.
func TestDamage(t *testing.T) {
	d := startDaemon(t)
	for _, front := range []string{"", "Cache|"} {
		for _, store := range damagedStores {
			t.Run(front+store, func(t *testing.T) { damageAll(t, d, front+store) })
		}
	}
}

const (
	// stressBlocks is how many blocks there are, stressShards how many shards each has.
	stressBlocks = 512
	stressShards = 32

	// stressTime is the most that a chain may take.
	stressTime = 30 * time.Minute
)

// stressRounds is how often a test may begin again with other damage.
const stressRounds = 5

// stressLayout has many shards in a block, each with a checksum: what a block costs, most of
// it calls into the kernel, is then spent on many flips.
var stressLayout = kvstore.Layout{BlockBytes: pageBytes, ShardBytes: pageBytes / stressShards}

func damageAll(t *testing.T, d *daemon, name string) {
	o, root := openingOf(t, name, d, stressLayout, 8<<20)
	p := places{Kind: kindOf(o.last()), Root: root, Layout: stressLayout}
	processes := 3
	if p.Kind == segmentKind {
		processes = 1 // a directory belongs to one
	}
	share(&o, name)
	if p.Kind != pagesKind { // a page file belongs to one model
		other := o
		other.Config.Namespace.Model = "kv3fs/another"
		share(&other, name+" of another model")
		saveAll(t, other, otherVariant)
	}
	saveAll(t, o, 0)
	if err := p.explore(o); err != nil {
		t.Fatal(err)
	}

	flips, random := flipsOf(t, o), seed.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), stressTime)
	defer cancel()
	var sum report
	// With few flips, chance may ruin the whole store early, so that nothing else is seen.
	telling := func() bool { return sum.Loaded > 0 && sum.Missed > 0 && sum.Corrupt > 0 }
	for round := uint64(0); round < stressRounds && !telling() && !t.Failed(); round++ {
		var all sync.WaitGroup
		reports := make([]report, processes)
		for i := range processes {
			all.Go(func() {
				reports[i] = stressUntilDone(ctx, t, damageOrder{
					Opening: o, Places: p, Seed: random + round<<32 + uint64(i), Variant: i,
					Data: flips / processes, Index: flips / processes,
				})
			})
		}
		all.Wait()
		for _, r := range reports {
			sum.add(r)
		}
	}
	t.Logf("%d processes: %+v", processes, sum)
	if t.Failed() {
		return
	}
	if !telling() {
		t.Error("there is too much damage or too little")
	}
	if sum.Mixed > 0 {
		t.Errorf("%d shards are of another variant than the rest of their block", sum.Mixed)
	}
	healed(t, o, p)
}

// flipsOf returns how many bytes of data a chain has flipped, and how many of what describes
// the data: logs of checksums, heads, headers, side files, indexes. KV3FS_CORRUPTIONS=100000
// is the whole of it for each store, a tenth behind a Cache; with KV3FS_SOAK, as at night, it is
// the whole there, too.
func flipsOf(t *testing.T, o opening) int {
	t.Helper()
	text := os.Getenv("KV3FS_CORRUPTIONS")
	if text == "" {
		return fewFlips
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KV3FS_CORRUPTIONS: %v", err)
	}
	if o.Config.Cache != nil && os.Getenv("KV3FS_SOAK") == "" {
		n /= 10
	}
	return n
}

// share makes the processes that open a chain share its Cache.
func share(o *opening, name string) {
	if o.Config.Cache == nil {
		return
	}
	shared := *o.Config.Cache
	shared.Shared, shared.SharedName = true, fmt.Sprintf("blocksoak %d %s", os.Getpid(), name)
	o.Config.Cache = &shared
}

// stressUntilDone runs a process, and another one in its place when it has killed itself,
// until the order is done.
func stressUntilDone(ctx context.Context, t *testing.T, o damageOrder) (sum report) {
	for o.Data > 0 || o.Index > 0 {
		arg, err := json.Marshal(o)
		if err != nil {
			t.Error(err)
			return sum
		}
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), roleEnv+"=stress")
		var out, said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(arg), &out, &said
		err = cmd.Run()
		var r report
		if decoded := json.Unmarshal(out.Bytes(), &r); decoded != nil || err != nil && (r.Killed == 0 || cmd.ProcessState.Exited()) {
			t.Errorf("process with seed %d: %v, %v\n%s%s", o.Seed, err, decoded, &out, &said)
			return sum
		}
		sum.add(r)
		o.Data, o.Index, o.Seed = o.Data-r.Data, o.Index-r.Index, o.Seed+1000
	}
	return sum
}

// saveAll saves a variant of all blocks.
func saveAll(t *testing.T, o opening, variant int) {
	t.Helper()
	c, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < stressBlocks; n += stressBatch {
		if err := c.saveVariant(t.Context(), n, variant); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// healed checks that everything can be saved again once the damage was found, and is there
// in a store that is opened then. Damage may have to be found more than once: not while a
// page's lease has ended, or the kernel remembers what was at a name before.
func healed(t *testing.T, o opening, p places) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		c, err := p.open(o, &report{})
		if err != nil {
			t.Fatal(err)
		}
		var r report
		for n := 0; n < stressBlocks; n += stressBatch {
			if err := c.loadVariants(t.Context(), n, &r); err != nil {
				t.Error(err)
			}
		}
		r.count(c.Stats())
		if r.Missed > 0 && p.Kind == segmentKind { // what is saved may evict what was there
			_, err = c.Purge(t.Context())
		}
		if err := errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
		if r.Unverified > 0 || r.Missed > 0 && time.Now().After(end) {
			t.Errorf("after everything was saved again: %+v", r)
		}
		if r.Missed == 0 || t.Failed() {
			return
		}
		saveAll(t, o, 0)
	}
}
