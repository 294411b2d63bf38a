package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestWritesAreVisible: hosts find out from each other whether what one writes is read by the other at once. Where it is late, writes are synced from
// then on; where it is late even so, that is known.
func TestWritesAreVisible(t *testing.T) {
	members := etcd.Start(t, etcd.Options{Members: 1})
	for _, c := range []struct {
		name       string
		sync       bool // what is known of the store
		late       func(synced bool) bool
		want, asks bool
	}{
		{"at once", false, func(bool) bool { return false }, true, false},
		{"once synced", false, func(synced bool) bool { return !synced }, true, true},
		{"late", true, func(bool) bool { return true }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMover(t, true)
			syncs := map[string]*atomic.Bool{"a": {}, "b": {}}
			for name, at := range m.hosts {
				syncs[name].Store(c.sync)
				mover := blockio.Mover{Mode: blockio.Shared, Kind: blockio.Disk, Sync: syncs[name]}
				at.visible = newVisible(m.data, at.me, mover, store{shared: true, sync: syncs[name]})
				at.visible.found = time.Second
				of := at.visible.reader.Path
				at.visible.reader.Path = func(host string) string {
					if c.late(syncs[host].Load()) {
						return filepath.Join(m.data, "old")
					}
					return of(host)
				}
				m.hosts[name] = at
			}
			// What a client of a store has kept: it is found, and is not what was written.
			if err := os.WriteFile(filepath.Join(m.data, "old"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			at := fmt.Sprintf("etcd://%s/kv3fs/%s", members.Endpoints()[0], strings.ReplaceAll(c.name, " ", "-"))
			a, b := m.start("a", at, false), m.start("b", at, false)
			for name := range m.hosts {
				v := m.hosts[name].visible
				await(t, "host "+name+" knows", func() bool { return v.known() != nil })
				if got := *v.known(); got != c.want {
					t.Errorf("host %s: visible at once: %v", name, got)
				}
				if got := syncs[name].Load(); got != c.asks {
					t.Errorf("host %s: writes are synced: %v", name, got)
				}
			}
			b.end(t)
			a.end(t)
		})
	}
}

// TestMoreSeldom: a host that nobody can answer asks soon at first, and for ever once a minute.
func TestMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		var tries []time.Duration
		moreSeldom(ctx, func() bool {
			tries = append(tries, time.Since(begun)/time.Second)
			return false
		})
		if want := []time.Duration{0, 3, 9, 21, 45, 93, 153}; !slices.Equal(tries[:min(len(tries), len(want))], want) || len(tries) > 65 || len(tries) < 60 {
			t.Errorf("%d tries, in seconds %v", len(tries), tries)
		}
		tries = nil
		moreSeldom(t.Context(), func() bool {
			tries = append(tries, 0)
			return len(tries) == 3
		})
		if len(tries) != 3 {
			t.Errorf("%d tries, and the third was the last", len(tries))
		}
	})
}

// TestVisibleAlone: a daemon of a directory of its own asks nobody and answers nobody.
func TestVisibleAlone(t *testing.T) {
	v := newVisible(t.TempDir(), hostID{Identity: "a"}, blockio.Mover{}, store{})
	if v != nil || v.answers() != nil || v.known() != nil {
		t.Errorf("%+v", v)
	}
}

// TestVisibleQuestions: what a host asks for is a file of a host, whatever it says it is called.
func TestVisibleQuestions(t *testing.T) {
	v := newVisible(t.TempDir(), hostID{Identity: "a"}, blockio.Mover{Mode: blockio.Shared}, store{shared: true})
	defer v.reader.Close()
	for _, c := range []struct{ host, question string }{
		{"../../secret", `{"round":0}`}, {"", `{"round":0}`}, {".", `{}`}, {"b", `{`}, {"b", `{"round":"x"}`}, {strings.Repeat("b", 5000), `{}`},
	} {
		if got, err := v.answers()(t.Context(), c.host, []byte(c.question)); err == nil {
			t.Errorf("%q, %q: %s", c.host, c.question, got)
		}
	}
	if got, err := v.answers()(t.Context(), "b", []byte(`{"round":0}`)); err != nil || string(got) != `{"digest":""}` {
		t.Errorf("%s, %v", got, err)
	}
}
