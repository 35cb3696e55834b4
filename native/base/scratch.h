// Scratch memory that a thread keeps from call to call: allocating it anew would cost page faults at every call.
#ifndef UWAGA_BASE_SCRATCH_H_
#define UWAGA_BASE_SCRATCH_H_

#include <stddef.h>
#include <stdint.h>

#include <new>

namespace uwaga {

// A 64-byte aligned array of floats that only grows.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  float* reserve(int64_t count) {
    if (count > size_) {
      release();
      data_ = nullptr;
      size_ = 0;
      const size_t bytes = (static_cast<size_t>(count) * sizeof(float) + 63) / 64 * 64;
      data_ = static_cast<float*>(::operator new(bytes, kAlignment, std::nothrow));
      if (!data_) throw std::bad_alloc();
      size_ = count;
    }
    return data_;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};  // operator new: Windows has no aligned_alloc

  void release() { ::operator delete(data_, kAlignment); }

  float* data_ = nullptr;
  int64_t size_ = 0;
};

// Divides one array into consecutive parts, each on a 64-byte boundary. With a null base it only adds up their sizes.
class ScratchLayout {
 public:
  explicit ScratchLayout(float* base) : base_(base) {}
  float* take(int64_t count) {
    const int64_t at = offset_of(count);
    return base_ ? base_ + at : nullptr;
  }
  // Where the next part begins, of `count` floats, for a layout that is made once and has several bases.
  int64_t offset_of(int64_t count) {
    const int64_t at = used_;
    used_ += (count + 15) / 16 * 16;
    return at;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

}  // namespace uwaga
#endif  // UWAGA_BASE_SCRATCH_H_
