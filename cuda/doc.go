// Package cuda is a device.Device over CUDA's driver API, and a device.Direct over cuFile.
// It loads libcuda and libcufile when it is opened, so a program with it needs neither to
// build nor, while it opens no device, to run. It has no cgo.
//
//	gpu, err := cuda.Open(cuda.Options{})
//	store, err := kvstore.Open("Cache|Segment", kvstore.Config{
//		Cache: &kvstore.CacheOptions{CapacityBytes: 64 << 30, Device: gpu}, // ...
//	})
//	layer, err := device.NewBuffer(gpu, pointer, sizeBytes) // the engine's memory
//	task, err := store.Load(ctx, layout.ByLayerOn(blocks, places))
//	<-task.Landed(0) // the first layer is on the GPU
//
// It is a module of its own, so that kv3fs and its daemon do not depend on how C is called.
package cuda
