package storesuite

import (
	"fmt"
	"os"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// sharedMemory returns a mapped object in /dev/shm. It is unmapped when the test ends,
// after the store is closed.
func (w *world) sharedMemory(sizeBytes int64) (name string, mem []byte) {
	w.Helper()
	name = fmt.Sprintf("kv3fs-storetest-%d", os.Getpid())
	m, err := shm.Create(name, sizeBytes, 0o600)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.store.Close()
		m.Unmap()
		_ = shm.Remove(name)
	})
	return name, m.Bytes()
}
