/// Writes GGUF files for tests: right ones and, since every number can be chosen, wrong ones. Single thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace reference {

/// The bytes of a GGUF file without check of any kind. Tensors follow in the order in which they are added.
class GgufBytes {
  public:
    enum Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, list, u64, i64, f64 };

    std::uint32_t version = 3;
    std::uint64_t more_tensors = 0, more_keys = 0;  ///< added to the numbers in the header
    std::size_t alignment = 32;

    template <class T>
    static std::string raw(T value) {
        std::string bytes(sizeof value, '\0');
        std::memcpy(bytes.data(), &value, sizeof value);
        return bytes;
    }
    static std::string raw_text(std::string_view value) {
        return raw<std::uint64_t>(value.size()) + std::string(value);
    }

    void key(std::string_view name, std::uint32_t type, const std::string& value) {
        keys_ += raw_text(name) + raw(type) + value;
        ++n_keys_;
    }
    void add(std::string_view name, std::string_view value) { key(name, text, raw_text(value)); }
    void add(std::string_view name, const char* value) { add(name, std::string_view(value)); }
    void add(std::string_view name, std::uint32_t value) { key(name, u32, raw(value)); }
    void add(std::string_view name, float value) { key(name, f32, raw(value)); }
    void add(std::string_view name, bool value) { key(name, flag, std::string(1, value ? '\1' : '\0')); }
    void add(std::string_view name, const std::vector<std::string>& values) {
        std::string bytes = raw<std::uint32_t>(text) + raw<std::uint64_t>(values.size());
        for (const std::string& value : values) bytes += raw_text(value);
        key(name, list, bytes);
    }
    void add(std::string_view name, const std::vector<std::int32_t>& values) {
        add_numbers(name, i32, values);
    }
    void add(std::string_view name, const std::vector<float>& values) { add_numbers(name, f32, values); }

    /// extents: the fastest first, as in the file.
    void tensor(std::string_view name, const std::vector<std::uint64_t>& extents, std::uint32_t type,
                const std::string& data) {
        tensor_at(name, extents, type, data_.size());
        data_ += data;
        data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    }
    /// Adds a tensor at any offset, without data.
    void tensor_at(std::string_view name, const std::vector<std::uint64_t>& extents, std::uint32_t type,
                   std::uint64_t offset) {
        tensors_ += raw_text(name) + raw(static_cast<std::uint32_t>(extents.size()));
        for (const std::uint64_t extent : extents) tensors_ += raw(extent);
        tensors_ += raw(type) + raw(offset);
        ++n_tensors_;
    }
    void add_data(std::size_t n) { data_.append(n, '\0'); }

    std::string bytes() const {
        std::string all = "GGUF" + raw(version) + raw(n_tensors_ + more_tensors) + raw(n_keys_ + more_keys);
        all += keys_ + tensors_;
        if (!data_.empty()) all.resize((all.size() + alignment - 1) / alignment * alignment);
        return all + data_;
    }

  private:
    template <class T>
    void add_numbers(std::string_view name, std::uint32_t type, const std::vector<T>& values) {
        std::string bytes = raw(type) + raw<std::uint64_t>(values.size());
        for (const T value : values) bytes += raw(value);
        key(name, list, bytes);
    }

    std::string keys_, tensors_, data_;
    std::uint64_t n_keys_ = 0, n_tensors_ = 0;
};

}  // namespace reference
