package httpserver_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// TestStops: a confirmation that may have lain unread while the process was stopped is neither executed nor sent to the leader, in
// both protocols, and not answered with what clients send it again for; a while later they are taken again.
func TestStops(t *testing.T) {
	var now atomic.Int64
	s := start(t, httpserver.Options{Times: pageservice.Options{}.WithDefaults()}, pageservice.Options{})
	s.server.SetClock(func() time.Duration { return time.Duration(now.Load()) })
	defer s.listen()()
	s.ok("/0/initialize", `{"num_pages":8}`)
	s.ok("/rank/0/initialize", `{"num_pages":8}`)
	s.ok("/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`)
	s.ok("/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`)
	confirms := [][2]string{
		{"/0/confirm_write", `{"written_keys_to_confirm":[["K",0]],"pages_to_release":[]}`},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]]}`},
	}
	far := &leader{answer: httpserver.Answer{Status: 204}}
	for _, source := range []httpserver.Source{{Leader: far}, {Index: s.index}} {
		s.server.Switch(source)
		now.Add(int64(6 * time.Second)) // more than half of the quarantine
		for _, c := range confirms {
			if status, answer := s.post(c[0], c[1]); status != 409 {
				t.Errorf("after a stop: %s: %d %s", c[0], status, answer)
			}
		}
		if len(far.got) > 0 {
			t.Errorf("the leader was sent %v", far.got)
		}
		if source.Index != nil {
			s.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
		}
		for range 2 {
			now.Add(int64(3 * time.Second))
			s.post(confirms[0][0], `{}`)
		}
		far.got = nil
	}
	for _, c := range confirms {
		s.ok(c[0], c[1])
	}
	s.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
}
