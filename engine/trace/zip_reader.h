/// Reads members of an untrusted zip file. Declared sizes are checked against the reader's budget before
/// anything is allocated, and against the data that is actually read. One thread.
#pragma once

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/npy.h"
#include "engine/trace/read_budget.h"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Types of libzip.
struct zip;
struct zip_file;

namespace keyhole {

class ZipReader {
  public:
    /// kind: what the file should be, for messages. Throws Error(bad_file), naming the file, if it is not a
    /// regular file or not a complete zip.
    explicit ZipReader(const std::filesystem::path& path, std::string_view kind = "a trace (.keyhole)");
    ~ZipReader();
    ZipReader(const ZipReader&) = delete;
    ZipReader& operator=(const ZipReader&) = delete;

    /// The budget of this file.
    ReadBudget& budget() const { return budget_; }
    bool contains(const std::string& name) const;
    /// Returns file and member, for messages.
    std::string where(const std::string& name) const;
    /// Throws Error(bad_file), saying that the member is damaged.
    [[noreturn]] void bad(const std::string& name, std::string_view why) const;

    /// A member, read from its start. Throws Error(bad_file), naming it.
    class Member {
      public:
        Member(const ZipReader& zip, std::string name);
        ~Member();
        Member(const Member&) = delete;
        Member& operator=(const Member&) = delete;

        std::uint64_t size() const { return size_; }
        /// Returns the number of bytes read: fewer than requested only at the end.
        std::size_t read(std::span<std::byte> to);
        /// Checks that the member ends here and has the declared size. Its checksum is checked only now.
        void end();

      private:
        const ZipReader& zip_;
        const std::string name_;
        zip_file* file_ = nullptr;
        std::uint64_t size_ = 0, n_read_ = 0;
    };

    /// Reads a whole member.
    std::vector<std::byte> read(const std::string& name) const;

    /// Checks type and shape. A -1 in the expected shape allows any extent.
    void check(const std::string& name, NpyType found, const NpyShape& found_shape, NpyType type,
               const NpyShape& shape) const;
    NpyArray array(const std::string& name, NpyType type, const NpyShape& shape) const;

    /// Reads a large array line by line. An array of one dimension is packed: its lines hold only the values
    /// of held positions, and the caller knows how many. Before version 3 every line had all positions.
    template <class T>
    class Lines {
      public:
        Lines(const ZipReader& zip, const std::string& name, NpyType type, const NpyShape& shape)
            : zip_(zip), name_(name), member_(zip, name), line_(to_index(shape.back())) {
            KH_ASSERT(npy_type_bytes(type) == sizeof(T));
            const NpyShape found = zip.read_header(member_, name, type);
            packed_ = found.size() == 1;
            zip.check(name, type, found, type, packed_ ? NpyShape{-1} : shape);
            if (packed_) n_left_ = found[0];
        }
        bool packed() const { return packed_; }
        /// Appends the next n values of a packed array to out.
        template <class Out>
        void append(std::size_t n, Out& out) {
            if (static_cast<std::int64_t>(n) > n_left_) zip_.bad(name_, "it is shorter than the run needs");
            n_left_ -= static_cast<std::int64_t>(n);
            const std::size_t have = out.size();
            out.resize(have + n);
            const std::span<std::byte> bytes = std::as_writable_bytes(std::span(out).subspan(have));
            if (member_.read(bytes) != bytes.size()) zip_.bad(name_, "it is cut off");
        }
        /// Returns the next line, valid until the following call.
        const std::vector<T>& next() {
            const std::span<std::byte> bytes = std::as_writable_bytes(std::span(line_));
            if (member_.read(bytes) != bytes.size()) zip_.bad(name_, "it is cut off");
            return line_;
        }
        void end() {
            if (n_left_ != 0) zip_.bad(name_, "it is longer than the run needs");
            member_.end();
        }

      private:
        const ZipReader& zip_;
        const std::string name_;
        Member member_;
        std::vector<T> line_;
        bool packed_ = false;
        std::int64_t n_left_ = 0;  // values left in a packed array
    };

  private:
    /// Returns the shape of an array whose header comes next. Throws Error(bad_file) if its type differs.
    NpyShape read_header(Member& member, const std::string& name, NpyType type) const;

    std::filesystem::path path_;
    zip* zip_ = nullptr;
    mutable ReadBudget budget_;  // mutable: reading changes nothing else
};

}  // namespace keyhole
