package fuseserver

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func BenchmarkWrite4K(b *testing.B) {
	for name, o := range map[string]Options{"passthrough": {}, "direct": {Passthrough: PassthroughOff}} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, o)
			f, err := os.Create(w.path("f"))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			page := make([]byte, 4096)
			for b.Loop() {
				if _, err := f.WriteAt(page, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkStatMissing(b *testing.B) {
	w := newWorld(b, Options{})
	for b.Loop() {
		var st unix.Stat_t
		if err := unix.Stat(w.path("missing"), &st); err != unix.ENOENT {
			b.Fatal(err)
		}
	}
}
