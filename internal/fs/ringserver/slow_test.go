package ringserver

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// A request that takes long is logged with its file and where the time went: in a call on the file, or waiting for the turn that
// others have; and so is one whose deadline passes meanwhile. Fast ones are not.
func TestSlowRequestsAreLogged(t *testing.T) {
	log := &lines{}
	s, files := serve(t, Options{Deadline: 3 * time.Second, Workers: 1, SlowIO: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil))})
	ino, release := hanging(t, files, false)
	healthy := fileWith(t, files, bytes.Repeat([]byte{'h'}, 4096))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 8, ".r0.t0")
	r.prep(0, wire.Args{BufID: id, FileIno: healthy, Len: 4096})
	r.submit()
	if got := r.reap(1, time.Minute); len(got) != 1 || got[0].Result != 4096 {
		t.Fatalf("%+v", got)
	}
	if text := log.String(); strings.Contains(text, "slow") {
		t.Errorf("a fast request:\n%s", text)
	}
	s.SetSlowIO(SlowIOLeast)

	r.prep(1, wire.Args{BufID: id, BufOff: 8192, FileIno: ino, FileOff: 4096, Len: 65536})
	r.submit()
	if got := r.reap(1, time.Minute); len(got) != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Fatalf("%+v", got)
	}
	awaitLine(t, log, fmt.Sprintf(`msg="a slow request of a ring" cause="the device" file=%s direction=read offset=4096 bytes=65536 result=-110 `, files.Path(ino)), "in_system_call=true")
	close(release)
}

// awaitLine waits for a line with all of these texts.
func awaitLine(t *testing.T, log *lines, want ...string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(log.String()) {
			has := true
			for _, text := range want {
				has = has && strings.Contains(line, text)
			}
			if has {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no line has %q:\n%s", want, log.String())
		}
	}
}

// What takes the longest is the cause, whatever it is, and each cause has a line a minute.
func TestCauseOfSlowRequest(t *testing.T) {
	log := &lines{}
	s, _ := serve(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	const took = 2 * time.Second
	longest := func(part int) slowRequest {
		q := slowRequest{took: took, result: 4096, write: part == spentRoom}
		q.spent[part] = int64(1500 * time.Millisecond)
		return q
	}
	for range 3 {
		s.tellSlow([]slowRequest{longest(spentQueued), longest(spentOpening), longest(spentRoom), longest(spentDevice), longest(spentSums), {took: took}})
	}
	text := log.String()
	if strings.Count(text, "\n") != 6 {
		t.Errorf("%d lines:\n%s", strings.Count(text, "\n"), text)
	}
	for _, want := range []string{
		`cause="its turn did not come"`, `cause="opening the file"`, `cause="waiting for room"`, `cause="the device"`, "cause=checksums", `cause="others of its batch, or its ring's memory"`,
		"queued=1.5s opening=0s room=0s device=0s checksums=0s completion=500ms", "completion=2s",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no line has %s:\n%s", want, text)
		}
	}
}

// What a request has spent before its deadline met it is told, in whichever state: between two pieces on a slow disk it is not its turn that did not come.
func TestCauseOfExpiredRequest(t *testing.T) {
	const took = 3 * time.Second
	r := &ring{server: &Server{clock: newClock(time.Hour)}, cred: cred.Caller{UID: 1}, process: &processTraffic{pid: 7}}
	spent := func(state int32, room bool, before [spentParts]int64) [spentParts]int64 {
		q := &request{expiredIn: state, spent: before, admitted: 0, takenAt: int64(time.Second)}
		q.awaitsRoom.Store(room)
		r.slowOnes = nil
		r.noteSlow(q, -int64(syscall.ETIMEDOUT), took)
		return r.slowOnes[0].spent
	}
	device := [spentParts]int64{spentDevice: int64(2 * time.Second)}
	for _, state := range []int32{stateQueued, stateTaken} {
		if got := spent(state, false, device); got != [spentParts]int64{spentQueued: int64(time.Second), spentDevice: int64(2 * time.Second)} {
			t.Errorf("in state %d: %v", state, got)
		}
	}
	if got := spent(stateQueued, false, [spentParts]int64{}); got[spentQueued] != int64(took) {
		t.Errorf("never taken: %v", got)
	}
	if got := spent(stateBegun, true, device); got[spentRoom] != int64(2*time.Second) || got[spentOpening] != 0 {
		t.Errorf("waiting for room: %v", got)
	}
	if got := spent(stateBegun, false, device); got[spentOpening] != int64(2*time.Second) || got[spentRoom] != 0 {
		t.Errorf("opening: %v", got)
	}
}

// A batch whose request was answered with ETIMEDOUT meanwhile has failed.
func TestBatchOfExpiredRequest(t *testing.T) {
	s := &Server{clock: newClock(time.Hour)}
	r := &ring{server: s, cred: cred.Caller{UID: 1, PID: 8}, process: &processTraffic{pid: 7}}
	expired, rescued, good := &request{expiredIn: stateRunning}, &request{expiredIn: stateDone}, &request{expiredIn: stateDone}
	expired.state.Store(stateAnswered)
	rescued.state.Store(stateAnswered)
	good.state.Store(stateDone)
	b := s.batchOf(r, job{batch: []*request{expired, rescued, good}}, time.Now(), false)
	if b.Failed != 1 || b.Requests != 3 || b.PID != 7 {
		t.Errorf("%+v", b)
	}
}
