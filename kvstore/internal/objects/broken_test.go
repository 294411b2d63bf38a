package objects

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var layout = kv.Layout{BlockBytes: 8192, ShardBytes: 4096}

// broken is a Backend whose calls a test replaces. Those that it does not are dir's.
type broken struct {
	dir
	has  func(names []string, found []bool) error
	get  func(ctx context.Context, name string, off int64, buf []byte) error
	put  func(ctx context.Context, name string, object []byte) error
	list func(yield func(string, error) bool)
	shut func() error
}

func (b broken) Has(ctx context.Context, names []string, found []bool) error {
	if b.has != nil {
		return b.has(names, found)
	}
	return b.dir.Has(ctx, names, found)
}

func (b broken) Get(ctx context.Context, name string, off int64, buf []byte) error {
	if b.get != nil {
		return b.get(ctx, name, off, buf)
	}
	return b.dir.Get(ctx, name, off, buf)
}

func (b broken) Put(ctx context.Context, name string, object []byte) error {
	if b.put != nil {
		return b.put(ctx, name, object)
	}
	return b.dir.Put(ctx, name, object)
}

func (b broken) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	if b.list != nil {
		return b.list
	}
	return b.dir.List(ctx, prefix)
}

func (b broken) Close() error {
	if b.shut != nil {
		return b.shut()
	}
	return nil
}

func openBroken(b Backend, timeout time.Duration) *Store {
	return New(b, Options{Name: "Mine", Layout: layout, Timeout: timeout})
}

func content() []byte { return []byte(strings.Repeat("kv cache", int(layout.BlockBytes)/8)) }

func move(t *testing.T, do func(context.Context, []kv.Shard) (*kv.Task, error), key kv.Key, buf []byte) error {
	t.Helper()
	task, err := do(t.Context(), kv.ByBlock[kv.Shard](layout, []kv.Key{key}, [][]byte{buf}))
	if err != nil {
		t.Fatal(err)
	}
	return task.Wait(t.Context())
}

// What a backend does wrong is an error or a miss, and never wrong bytes or a panic.
func TestBackendsThatBreakTheContract(t *testing.T) {
	key := kv.Key{1}
	for name, c := range map[string]struct {
		make func(d dir) broken
		save string // what the error of a save says; "": there is none
		load error  // what the error of a load of a block that is there is
		text string // and says
	}{
		"Get fills nothing": {
			make: func(d dir) broken {
				return broken{dir: d, get: func(context.Context, string, int64, []byte) error { return nil }}
			},
			load: kv.ErrCorrupt,
		},
		"Get returns other bytes": {
			make: func(d dir) broken {
				return broken{dir: d, get: func(ctx context.Context, name string, off int64, buf []byte) error {
					err := d.Get(ctx, name, off, buf)
					if off > 0 {
						buf[7]++
					}
					return err
				}}
			},
			load: kv.ErrCorrupt,
		},
		"Get panics": {
			make: func(d dir) broken {
				return broken{dir: d, get: func(context.Context, string, int64, []byte) error { panic("no such shelf") }}
			},
			text: "store Mine: Get: panic: no such shelf",
		},
		"Get has lost the object": {
			make: func(d dir) broken {
				return broken{dir: d, get: func(context.Context, string, int64, []byte) error { return kv.ErrMiss }}
			},
			load: kv.ErrCorrupt,
		},
		"Put panics": {
			make: func(d dir) broken {
				return broken{dir: d, put: func(context.Context, string, []byte) error { panic(errors.New("no such shelf")) }}
			},
			save: "store Mine: Put: panic: no such shelf",
		},
		"Put misses": {
			make: func(d dir) broken {
				return broken{dir: d, put: func(context.Context, string, []byte) error { return kv.ErrMiss }}
			},
			save: "breaks its contract",
		},
		"Put is full": {
			make: func(d dir) broken {
				return broken{dir: d, put: func(context.Context, string, []byte) error { return kv.ErrFull }}
			},
			save: kv.ErrFull.Error(),
		},
		"Has says no": {
			make: func(d dir) broken {
				return broken{dir: d, has: func(names []string, found []bool) error { return nil }}
			},
		},
		"Has panics": {
			make: func(d dir) broken {
				return broken{dir: d, has: func([]string, []bool) error { panic("no such shelf") }}
			},
			save: "store Mine: Has: panic: no such shelf",
		},
		"Close panics": {
			make: func(d dir) broken { return broken{dir: d, shut: func() error { panic("no such shelf") }} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := dir(t.TempDir())
			whole := openBroken(d, 10*time.Second)
			if err := move(t, whole.Save, key, content()); err != nil {
				t.Fatal(err)
			}
			if err := whole.Close(); err != nil {
				t.Fatal(err)
			}
			s := openBroken(c.make(d), 10*time.Second)
			err := move(t, s.Save, kv.Key{2}, content())
			if (err == nil) != (c.save == "") || err != nil && !strings.Contains(err.Error(), c.save) {
				t.Errorf("save: %v; want %q", err, c.save)
			}
			buf := make([]byte, layout.BlockBytes)
			err = move(t, s.Load, key, buf)
			switch {
			case c.load == nil && c.text == "":
				if err != nil || string(buf) != string(content()) {
					t.Errorf("load: %v", err)
				}
			case c.load != nil && !errors.Is(err, c.load), c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)):
				t.Errorf("load: %v; want %v, %q", err, c.load, c.text)
			}
			if err := s.Close(); (err != nil) != (name == "Close panics") {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// A call that does not return ends a wait after the timeout. The buffer that it was given
// is abandoned, and Close says so.
func TestBackendThatHangs(t *testing.T) {
	d := dir(t.TempDir())
	whole := openBroken(d, 10*time.Second)
	if err := move(t, whole.Save, kv.Key{1}, content()); err != nil {
		t.Fatal(err)
	}
	if err := whole.Close(); err != nil {
		t.Fatal(err)
	}
	release, released := make(chan struct{}), make(chan struct{})
	s := openBroken(broken{dir: d, get: func(ctx context.Context, name string, off int64, buf []byte) error {
		if off > 0 {
			<-release // and not at the end of ctx
			close(released)
		}
		return d.Get(ctx, name, off, buf)
	}}, 50*time.Millisecond)
	err := move(t, s.Load, kv.Key{1}, make([]byte, layout.BlockBytes))
	if !errors.Is(err, kv.ErrAbandoned) || !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("load: %v", err)
	}
	if err := s.Close(); !errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("Close: %v", err)
	}
	close(release)
	<-released
}

// Names that are none of this store's, and names that come twice, are left out of Keys. An
// error or a panic of the sequence ends it.
func TestListsThatBreakTheContract(t *testing.T) {
	prefix := kv.Fingerprint{}.String() + "/"
	good := prefix + kv.Key{1}.String()
	for name, c := range map[string]struct {
		list func(yield func(string, error) bool)
		want int
		err  string
	}{
		"strangers": {func(yield func(string, error) bool) {
			for _, name := range []string{good, "", prefix, good + "00", strings.ToUpper(good), "other/" + kv.Key{2}.String(), good} {
				if !yield(name, nil) {
					return
				}
			}
		}, 1, ""},
		"an error": {func(yield func(string, error) bool) { yield("", errors.New("no such shelf")) }, 0, "store Mine: List: no such shelf"},
		"a panic":  {func(yield func(string, error) bool) { panic("no such shelf") }, 0, "store Mine: List: panic: no such shelf"},
	} {
		s := openBroken(broken{dir: dir(t.TempDir()), list: c.list}, 10*time.Second)
		n, failed := 0, ""
		for _, err := range s.Keys(t.Context()) {
			if err != nil {
				failed = err.Error()
				continue
			}
			n++
		}
		if n != c.want || failed != c.err {
			t.Errorf("%s: %d keys, %q", name, n, failed)
		}
		for range s.Keys(t.Context()) {
			break // a caller may leave early
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
