package ringserver

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// A process is listed with what it has registered, and no longer than that.
func TestProcesses(t *testing.T) {
	s, _ := serve(t, Options{})
	if all := s.Processes(); len(all) != 0 {
		t.Fatalf("before: %+v", all)
	}
	_, _, iov, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, s, 8, ".w4.t0.ph")
	all := s.Processes()
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	got := all[0]
	if got.PID != os.Getpid() || got.UID != me.UID || got.Name != commandOf(os.Getpid()) || got.Name == "" || got.Iovs != 1 || got.Rings != 1 || got.IovBytes != 1<<20 || got.RingBytes != wire.RingBytes(8) {
		t.Errorf("%+v", got)
	}
	if len(got.Registrations) != 2 {
		t.Fatalf("%+v", got.Registrations)
	}
	if h := got.Registrations[0]; h.Name != iov || h.Bytes != 1<<20 || h.Ring {
		t.Errorf("iov: %+v", h)
	}
	if h := got.Registrations[1]; h.Name != p.name || !h.Ring || !h.Write || h.Entries != 8 || h.Depth != 4 || h.Priority != wire.High {
		t.Errorf("ring: %+v", h)
	}
	for _, name := range []string{iov, p.name} {
		if err := s.Unregister(me, name); err != nil {
			t.Fatal(err)
		}
	}
	if all := s.Processes(); len(all) != 0 {
		t.Errorf("after: %+v", all)
	}
}
