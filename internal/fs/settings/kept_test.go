package settings

import (
	"errors"
	"testing"
)

// What clients have set is kept before it takes effect, and a successor goes on with what is valid there.
func TestSettingsAreKept(t *testing.T) {
	const user = 1000
	var kept []byte
	s := New(Defaults())
	if err := s.Keep(func(text []byte) error { kept = text; return nil }); err != nil {
		t.Fatal(err)
	}
	if s.Changed() {
		t.Error("nothing was set, and something has changed")
	}
	for _, set := range []struct {
		uid        uint32
		key, value string
	}{{user, "usr.readonly", "true"}, {user, "usr.attr_timeout", "2.5"}, {0, "sys.max_jobs_per_ioring", "7"}} {
		if err := s.Set(set.uid, set.key, set.value); err != nil {
			t.Fatalf("%s: %v", set.key, err)
		}
	}
	next := New(Defaults())
	if err := next.Restore(kept); err != nil || !next.Changed() {
		t.Fatal(err, next.Changed())
	}
	for _, key := range Keys() {
		for _, uid := range []uint32{0, user} {
			was, _ := s.Get(uid, key)
			if is, _ := next.Get(uid, key); is != was {
				t.Errorf("%s of user %d: %s, and was %s", key, uid, is, was)
			}
		}
	}
	for _, bad := range []string{"", "{", `{"everybody":{"usr.readonly":"true"}}`, `{"users":{"5":{"sys.max_jobs_per_ioring":"3"}}}`, `{"users":{"5":{"usr.readonly":"maybe"}}}`, `{"other":1}`} {
		if err := New(Defaults()).Restore([]byte(bad)); err == nil {
			t.Errorf("%q was restored", bad)
		}
	}
	s.keep = func([]byte) error { return errors.New("full") }
	if err := s.Set(user, "usr.readonly", "false"); err == nil {
		t.Error("a setting that cannot be kept was made")
	}
	if !s.Readonly(user) {
		t.Error("a setting that was refused has taken effect")
	}
}
