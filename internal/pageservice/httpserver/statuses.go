package httpserver

import "net/http"

// StatusMeaning says what the service means by a status, and what a client can do.
type StatusMeaning struct {
	Status  int
	Meaning string
}

// Statuses returns all statuses of refusals.
func Statuses() []StatusMeaning {
	return []StatusMeaning{
		{http.StatusBadRequest, "vLLM: a field is missing or wrong (no rank, keys that are no list, num_pages not above 0). Both: a value out of range, or a key above 4 KiB."},
		{http.StatusUnauthorized, "The token is missing or wrong (--pages-token-file)."},
		{http.StatusForbidden, "A web page of another origin may have sent the request, or it is for an unknown host name (--pages-host). Of kv3fs pages: this address serves another namespace only."},
		{http.StatusNotFound, "There is no such path. SGLang: the rank of this pool was never initialised. Of kv3fs pages: there is no such namespace, set or rank."},
		{http.StatusMethodNotAllowed, "Not POST; the header Allow says what is."},
		{http.StatusRequestTimeout, "The body did not arrive within 15 s; one above 128 KiB: more slowly than 256 KiB/s, after 3 s."},
		{http.StatusConflict, "confirm_write, for 5 s after the service was stopped or suspended for longer than half of --pages-quarantine: what was written is not saved."},
		{http.StatusRequestEntityTooLarge, "The body is above --pages-body-limit, or has more than --pages-batch-limit keys."},
		{http.StatusUnsupportedMediaType, "The body is of a type that web forms send, such as text/plain. Send application/json, or none."},
		{http.StatusMisdirectedRequest, "Between hosts only: a request was forwarded to a host that does not lead either. Engines get 503."},
		{http.StatusUnprocessableEntity, "The rank in the path is not an integer."},
		{http.StatusInternalServerError, "The body is malformed: no JSON object, an item of a wrong type, 1.0 for 1, a name twice, invalid UTF-8. vLLM: the rank was never initialised. Anything else is in the daemon's log."},
		{http.StatusServiceUnavailable, "Try again after Retry-After: the index cannot write (the disk is full or broken), no host leads, too many requests (--pages-concurrency) or too many large bodies (--pages-body-memory) are under way, or the answer came too late to be used."},
		{http.StatusInsufficientStorage, "initialize: there is no memory for another rank or namespace (--pages-memory)."},
	}
}
