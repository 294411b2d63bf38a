package blockfiles

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

const (
	stressEnv       = "KV3FS_TEST_STRESS"
	stressProcesses = 3
	stressKeys      = 40
)

var stressLayout = kv.Layout{BlockBytes: 4096, ShardBytes: 1024}

// stressOrder is what a process of the stress is to do.
type stressOrder struct {
	Dir     string
	Seed    uint64
	Variant int           // of the blocks that it saves
	Steps   int           // at most
	Length  time.Duration // at most, unless 0
}

// Several processes save, load, delete, evict and damage blocks of one directory, damage
// the logs, and compact them. Whatever is loaded is right and was verified: in these
// processes, and in stores that are opened just after a Save has returned.
func TestStressOfProcesses(t *testing.T) {
	o := stressOrder{Dir: t.TempDir(), Seed: seed.New(t), Steps: 1500}
	if testing.Short() {
		o.Steps = 300
	}
	patience := time.Minute
	if text := os.Getenv("KV3FS_SOAK"); text != "" {
		var err error
		if o.Length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("KV3FS_SOAK: %v", err)
		}
		o.Steps, patience = 1<<40, patience+o.Length
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	for i := range stressProcesses {
		o.Seed, o.Variant = o.Seed+1, i
		arg, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), stressEnv+"="+string(arg))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("process %d: %v\n%s", i, err, out)
			}
			t.Logf("process %d: %s", i, bytes.TrimSpace(out))
		})
	}
	all.Wait()

	p, err := openStress(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.s.Close()
	// Afterwards, everything can be saved, once the damage was found, and is verified.
	for i := range stressKeys {
		if _, err := p.load(i); err != nil {
			t.Error(err)
		}
		if err := p.save(i); err != nil {
			t.Error(err)
		}
		if there, err := p.loadFresh(i); err != nil || !there {
			t.Errorf("block %d after a Save: there %v, %v", i, there, err)
		}
	}
}

// stressed is one process of the stress.
type stressed struct {
	stressOrder
	rng *rand.Rand
	s   *Store

	loaded, saved, damaged int
}

func openStress(o stressOrder) (*stressed, error) {
	engine := posix.New(posix.Options{Streams: 2})
	s, err := Open(Options{
		Name: "Stress", Layout: stressLayout, Roots: []string{o.Dir}, Format: UCM{BlockBytes: stressLayout.BlockBytes, DirDigits: 1}, TempDir: ".temp", OpenFiles: 8, Engine: engine,
	})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return &stressed{stressOrder: o, rng: rand.New(rand.NewPCG(o.Seed, 3)), s: s}, nil
}

func stressProcess(arg string) error {
	var o stressOrder
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return err
	}
	p, err := openStress(o)
	if err != nil {
		return err
	}
	begin := time.Now()
	for n := 0; n < o.Steps && (o.Length == 0 || time.Since(begin) < o.Length); n++ {
		if err := p.step(); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
	}
	fmt.Printf("%d loaded, %d saved, %d damaged", p.loaded, p.saved, p.damaged)
	return errors.Join(p.unverified(), p.s.Close())
}

// step does one thing at random.
func (p *stressed) step() error {
	i := p.rng.IntN(stressKeys)
	switch what := p.rng.IntN(100); {
	case what < 45:
		_, err := p.load(i)
		return err
	case what < 75:
		if err := p.save(i); err != nil {
			return err
		}
		if what < 50 {
			_, err := p.loadFresh(i)
			return err
		}
	case what < 81:
		return p.s.Delete(context.Background(), []kv.Key{stressKey(i)})
	case what < 85: // a cleaner
		_ = os.Remove(p.path(i))
	case what < 95:
		return p.flip(p.path(i), 8)
	case what < 97:
		logs, err := filepath.Glob(filepath.Join(p.Dir, sums.DirName, "*.log"))
		if err != nil || len(logs) == 0 {
			return err
		}
		return p.flip(logs[p.rng.IntN(len(logs))], 40)
	default: // what is done every hour
		r := p.s.roots[0]
		return p.s.compact(r)
	}
	return nil
}

func (p *stressed) path(i int) string { return p.s.path(p.s.roots[0], stressKey(i)) }

// lateBytes is the end of a log, whose records count most: those before have mostly been
// replaced.
const lateBytes = 200 * 96

// flip damages n bits of a file, if it is there: of a block, or of the late records of a log.
func (p *stressed) flip(path string, n int) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	for range n {
		info, err := f.Stat()
		if err != nil || info.Size() == 0 {
			return err
		}
		late := min(info.Size(), lateBytes)
		at, one := info.Size()-late+p.rng.Int64N(late), make([]byte, 1)
		switch _, err := f.ReadAt(one, at); {
		case err == io.EOF: // another process has cut it short meanwhile
			continue
		case err != nil:
			return err
		}
		one[0] ^= 1 << p.rng.IntN(8)
		if _, err := f.WriteAt(one, at); err != nil {
			return err
		}
		p.damaged++
	}
	return nil
}

func stressKey(i int) kv.Key { return kv.Key{byte(i << 4), byte(i), 1} }

// stressBlock is a block as one of the processes has computed it.
func stressBlock(i, variant int) []byte {
	rng := rand.NewChaCha8([32]byte{byte(i), byte(variant)})
	b := make([]byte, stressLayout.BlockBytes)
	_, _ = rng.Read(b) // it never fails
	return b
}

func (p *stressed) save(i int) error {
	ctx := context.Background()
	task, err := p.s.Save(ctx, stressLayout.ByBlock([]kv.Key{stressKey(i)}, [][]byte{stressBlock(i, p.Variant)}))
	if err == nil {
		err = task.Wait(ctx)
	}
	p.saved++
	return err
}

// load reports whether a block is there. It is then what one of the processes saved.
func (p *stressed) load(i int) (bool, error) {
	ctx, buf := context.Background(), make([]byte, stressLayout.BlockBytes)
	task, err := p.s.Load(ctx, stressLayout.ByBlock([]kv.Key{stressKey(i)}, [][]byte{buf}))
	if err == nil {
		err = task.Wait(ctx)
	}
	if errors.Is(err, kv.ErrMiss) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.loaded++
	for v := range stressProcesses {
		if bytes.Equal(buf, stressBlock(i, v)) {
			return true, p.unverified()
		}
	}
	return true, fmt.Errorf("block %d was loaded with wrong bytes", i)
}

// loadFresh is load in a store that is opened for it.
func (p *stressed) loadFresh(i int) (bool, error) {
	fresh, err := openStress(p.stressOrder)
	if err != nil {
		return false, err
	}
	there, err := fresh.load(i)
	return there, errors.Join(err, fresh.s.Close())
}

func (p *stressed) unverified() error {
	if n := p.s.Stats().UnverifiedShards; n > 0 {
		return fmt.Errorf("%d shards were loaded unverified", n)
	}
	return nil
}
