package kvstore

import "cmp"

// fit returns how much memory to take of what is wanted: all of it if it is free, else
// half of what is, so that there is some for rings and for other ranks. The log says what
// was reduced. Where nothing tells what is free, it is what is wanted.
func (b *builder) fit(what string, wantedBytes int64, inShm bool) int64 {
	free, err := b.free(inShm)
	if err != nil || wantedBytes <= free {
		return wantedBytes
	}
	where := "memory"
	if inShm {
		where = "/dev/shm"
	}
	b.Logger.Warn(what+" is reduced to half of what is free", "wanted_bytes", wantedBytes, "taken_bytes", free/2, "free_bytes", free, "where", where)
	return free / 2
}

// bufferBytes returns the size of a store's buffers for data whose memory is not
// registered.
func (b *builder) bufferBytes(store string, givenBytes int64) int64 {
	return b.fit("the buffer of "+store, cmp.Or(givenBytes, defaultBufferBytes), true)
}
