package cache_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const childOf = "KV3FS_TEST_CACHE" // the name of the cache that a child shares

func TestMain(m *testing.M) {
	if name := os.Getenv(childOf); name != "" {
		if err := child(name); err != nil {
			fmt.Println("child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(leaktest.Main(m))
}

const (
	killSlots = 24
	killKnown = 40 // blocks that next always has
	killSaved = 40 // blocks that are there once a process has saved them
)

var killLayout = kv.Layout{BlockBytes: 4 * 16 << 10, ShardBytes: 16 << 10}

func killOptions(name string) cache.Options {
	return cache.Options{
		SharedName: name, CapacityBytes: killSlots * killLayout.BlockBytes,
		Timeout: 200 * time.Millisecond, Streams: 2,
	}
}

// killNext has the known blocks, and checks every byte that is saved to it.
func killNext() *shelf {
	next := newShelf(killLayout, newThings())
	next.things.fill(killLayout, keys(0, killKnown)...)
	next.before(func(s kv.Shard, save bool) error {
		if save && !right(s) {
			panic(fmt.Sprintf("wrong bytes written behind: block %s, shard %d", s.Key, s.Index))
		}
		if rand.IntN(20) == 0 {
			time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		}
		if rand.IntN(200) == 0 {
			return errors.New("no")
		}
		return nil
	})
	return next
}

// child calls random methods of the cache until its input ends, and prints a line for each
// call.
func child(name string) error {
	s, err := cache.New(killNext(), killOptions(name))
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, os.Stdin)
	}()
	for {
		select {
		case <-ended:
			return closeChild(s)
		default:
		}
		if err := something(s); err != nil {
			return err
		}
		fmt.Println("did something")
	}
}

// closeChild closes the cache and ignores Close's error: next may have refused blocks.
func closeChild(s *cache.Store) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Close()
	}()
	select {
	case <-done:
		return nil
	case <-time.After(patience):
		return errors.New("stuck in Close")
	}
}

// something is one batch or call. It returns an error for wrong bytes, and for what
// takes too long.
func something(s *cache.Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var some []kv.Key
	for range 1 + rand.IntN(8) {
		some = append(some, key(rand.IntN(killKnown+killSaved)))
	}
	shards := blocks(killLayout, some...)
	rand.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
	var err error
	switch what := rand.IntN(10); what {
	case 0:
		s.Prefetch(some)
	case 1:
		err = s.Lookup(ctx, some, make([]bool, len(some)))
	case 2:
		s.Flush(ctx)
	case 3, 4, 5:
		var t *kv.Task
		if t, err = s.Save(ctx, filled(shards[:1+rand.IntN(len(shards))])); err == nil {
			t.Wait(ctx)
		}
	default:
		var t *kv.Task
		if t, err = s.Load(ctx, shards); err != nil {
			break
		}
		if what == 6 {
			t.Cancel()
		}
		for i, err := range t.All() {
			if err == nil && !right(shards[i]) {
				return fmt.Errorf("wrong bytes in block %s, shard %d", shards[i].Key, shards[i].Index)
			}
		}
	}
	if ctx.Err() != nil {
		return errors.New("it took too long")
	}
	return err
}

// process is a child under way.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, name string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), childOf+"="+name)
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

// work waits until the child has made so many calls.
func (p *process) work(t *testing.T, things int) {
	t.Helper()
	for range things {
		if !p.out.Scan() {
			t.Fatalf("a child ended: %v", p.Wait())
		}
		if line := p.out.Text(); line != "did something" {
			t.Fatal(line)
		}
	}
}

// end closes a child's input and waits until it exits.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.in.Close()
	for p.out.Scan() {
		if line := p.out.Text(); line != "did something" {
			t.Error(line)
		}
	}
	if err := p.Wait(); err != nil {
		t.Errorf("a child: %v", err)
	}
}

// Processes that share a cache are killed at any instant. The others never get a wrong
// byte, nothing hangs, and in the end all memory can be used again.
func TestKill(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	name := shared(t)
	s := mustNew(t, killNext(), killOptions(name))
	children := []*process{start(t, name), start(t, name), start(t, name)}
	for round := range rounds {
		victim := children[round%len(children)]
		victim.work(t, rand.IntN(12))
		if err := something(s); err != nil {
			t.Fatal(err)
		}
		if err := victim.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for victim.out.Scan() { // until it is gone
		}
		victim.Wait()
		children[round%len(children)] = start(t, name)
	}
	for _, c := range children {
		c.end(t)
	}
	// After the grace period there are as many slots as ever.
	eventually(t, "all memory can be used again", func() bool {
		for n := range killKnown {
			begin(t, s.Load, blocks(killLayout, key(n))).Wait(bounded(t))
		}
		return s.Stats().Blocks == killSlots
	})
	if err := closeChild(s); err != nil {
		t.Fatal(err)
	}
	gone(t, name)
}
