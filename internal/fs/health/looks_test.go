package health

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"time"
)

// A look that is lost, and never ends, does not count once another one has ended.
func TestLostLook(t *testing.T) {
	const limit = 5 * time.Second
	l := newLooks(limit)
	now := l.due()
	lost := l.begin(now)
	if err, hangs := l.verdict(now + limit - 1); err != nil || hangs {
		t.Errorf("within its limit: %v, %v", err, hangs)
	}
	now += limit
	if err, hangs := l.verdict(now); err == nil || !hangs {
		t.Errorf("at its limit: %v, %v", err, hangs)
	}
	if now < l.due() {
		t.Fatalf("the next look is due only at %v, long after %v", l.due(), now)
	}
	l.end(l.begin(now), nil)
	if err, hangs := l.verdict(now + time.Hour); err != nil || hangs {
		t.Errorf("a newer look has ended: %v, %v", err, hangs)
	}
	if due := l.due(); due != now+lookEvery {
		t.Errorf("the next look is due at %v, want %v", due, now+lookEvery)
	}
	l.end(lost, syscall.EIO)
	if err, _ := l.verdict(now); err != nil {
		t.Errorf("what an old look says at last: %v", err)
	}
}

// While the file system hangs, looks begin ever more seldom, and only so many; when one ends, all is well.
func TestLooksWhileHung(t *testing.T) {
	const limit = time.Second
	l := newLooks(limit)
	now := l.due()
	began := now
	var all []int
	for l.due() != math.MaxInt64 {
		now = l.due()
		if since := now - began; len(all) > 1 && now-l.begun > since+limit {
			t.Errorf("look %d begins %v after the last one, %v after the first", len(all), now-l.begun, since)
		}
		all = append(all, l.begin(now))
	}
	if len(all) != mostPending {
		t.Errorf("%d looks", len(all))
	}
	if now-began < 8*time.Hour {
		t.Errorf("no look any more after %v", now-began)
	}
	for _, number := range all {
		if _, hangs := l.verdict(now + limit); !hangs {
			t.Errorf("the newest hang, and it works when look %d has ended", number-1)
		}
		l.end(number, nil)
	}
	if err, hangs := l.verdict(now + limit); err != nil || hangs {
		t.Errorf("all have ended: %v, %v", err, hangs)
	}
}

// A process that was stopped during a look, for however long, does not take the file system for hung.
func TestStoppedDuringLook(t *testing.T) {
	l := newLooks(5 * time.Second)
	now := l.due()
	l.begin(now)
	pause := l.pause(now)
	now += l.ran(time.Hour, pause)
	if err, hangs := l.verdict(now); err != nil || hangs {
		t.Errorf("%v, %v", err, hangs)
	}
	for range 8 {
		pause = l.pause(now)
		now += l.ran(pause, pause)
	}
	if _, hangs := l.verdict(now); !hangs {
		t.Errorf("it has not ended since either, and does not hang after %v", now)
	}
}

// However many calls fail, looks have a pause between them.
func TestPauseBetweenLooks(t *testing.T) {
	l := newLooks(time.Minute)
	for _, c := range []struct {
		found error
		pause time.Duration
	}{{nil, leastPause}, {syscall.EIO, lookEverySick}} {
		now := l.due()
		l.doubted = true
		l.end(l.begin(now), c.found)
		l.doubted = true
		if got := l.due() - now; got != c.pause {
			t.Errorf("found %v: the next one after %v, want %v", c.found, got, c.pause)
		}
	}
}

// Looks that were lost in outages that are over do not end the watch, unless there are very many.
func TestManyLostLooks(t *testing.T) {
	l := newLooks(time.Second)
	var now time.Duration
	for lost := 0; lost < mostLost; lost++ {
		if err, hangs := l.verdict(now); err != nil || hangs {
			t.Fatalf("%d looks are lost, the newest has ended: %v, %v", lost, err, hangs)
		}
		for range 2 {
			now = l.due()
			l.begin(now)
		}
		if now == math.MaxInt64 {
			t.Fatalf("%d looks are lost, and it looks no more", lost)
		}
		l.end(l.last, nil)
	}
	var restart NeedsRestart
	if err, _ := l.verdict(now); !errors.As(err, &restart) || l.due() != math.MaxInt64 {
		t.Errorf("%d looks are lost: %v, and the next is due at %v", mostLost, err, l.due())
	}
	l.end(1, nil)
	if err, _ := l.verdict(now); err != nil || l.due() == math.MaxInt64 {
		t.Errorf("one of them has ended after all: %v, and the next is due at %v", err, l.due())
	}
}
