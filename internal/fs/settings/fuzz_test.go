package settings_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/settings"
)

// FuzzSet checks that any text is either refused with an errno that clients know, and
// changes nothing, or accepted, and then reads back as a text with the same meaning.
func FuzzSet(f *testing.F) {
	f.Fuzz(func(t *testing.T, name, text string) {
		s := settings.New(options())
		before, known := s.Get(0, name)
		err := s.Set(0, name, text)
		if (known == nil) != slices.Contains(settings.Keys(), name) {
			t.Fatalf("%q: %v", name, known)
		}
		after, _ := s.Get(0, name)
		if err != nil {
			if err != syscall.EINVAL && err != syscall.EIO || after != before {
				t.Fatalf("%s = %q: %v, and %s became %s", name, text, err, before, after)
			}
			return
		}
		if err := s.Set(0, name, after); err != nil {
			t.Fatalf("%s = %q reads back as %q, which is refused: %v", name, text, after, err)
		}
		if again, _ := s.Get(0, name); again != after {
			t.Fatalf("%s = %q reads back as %q, then as %q", name, text, after, again)
		}
		if d := s.AttrTimeout(0); d < 0 {
			t.Fatalf("attribute timeout %v", d)
		}
	})
}
