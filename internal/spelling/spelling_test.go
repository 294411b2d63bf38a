package spelling

import (
	"slices"
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"hf3fs_io_depth", "hf3fs_iov_size", "hf3fs_mount_point", "chunk_size"}
	for _, c := range []struct {
		word string
		want []string
	}{
		{"hfs3fs_iov_size", []string{"hf3fs_iov_size", "hf3fs_io_depth"}},
		{"HF3FS_MOUNTPOINT", []string{"hf3fs_mount_point"}},
		{"chunk", []string{"chunk_size"}},
		{"temperature", nil},
		{"", nil},
		{strings.Repeat("x", 1<<20), nil},
	} {
		if got := Nearest(c.word, known, 2); len(c.want) == 0 && len(got) != 0 || len(c.want) > 0 && (len(got) == 0 || got[0] != c.want[0]) {
			t.Errorf("%.40q: %v, want %v", c.word, got, c.want)
		}
	}
	if got := Nearest("a", []string{"a", "b", "c"}, 1); !slices.Equal(got, []string{"a"}) {
		t.Errorf("limit: %v", got)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"ab", "ba", 2}, {"same", "same", 0},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
