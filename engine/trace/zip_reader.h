/// Members of a zip file that nobody vouches for: declared sizes are checked against the reader's budget
/// before anything is allocated, and against what really comes. One thread.
#pragma once

#include "engine/base/error.h"
#include "engine/base/npy.h"
#include "engine/trace/read_budget.h"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Of libzip.
struct zip;
struct zip_file;

namespace keyhole {

class ZipReader {
  public:
    /// Throws Error(bad_file) naming the file: it is no ordinary one, or no whole zip.
    explicit ZipReader(const std::filesystem::path& path);
    ~ZipReader();
    ZipReader(const ZipReader&) = delete;
    ZipReader& operator=(const ZipReader&) = delete;

    /// Of the file.
    ReadBudget& budget() const { return budget_; }
    bool contains(const std::string& name) const;
    /// For messages: file and member.
    std::string where(const std::string& name) const;
    /// Throws Error(bad_file): the member is damaged.
    [[noreturn]] void bad(const std::string& name, std::string_view why) const;

    /// A member, read from its beginning on. Throws Error(bad_file) naming it.
    class Member {
      public:
        Member(const ZipReader& zip, std::string name);
        ~Member();
        Member(const Member&) = delete;
        Member& operator=(const Member&) = delete;

        std::uint64_t size() const { return size_; }
        /// Fewer bytes than asked for at the end alone.
        std::size_t read(std::span<std::byte> to);
        /// It ends here, and is as long as the directory says; its checksum is known only now.
        void end();

      private:
        const ZipReader& zip_;
        const std::string name_;
        zip_file* file_ = nullptr;
        std::uint64_t size_ = 0, n_read_ = 0;
    };

    /// A whole member.
    std::vector<std::byte> read(const std::string& name) const;

    /// -1 in the expected shape: any extent.
    void check(const std::string& name, NpyType found, const NpyShape& found_shape, NpyType type,
               const NpyShape& shape) const;
    NpyArray array(const std::string& name, NpyType type, const NpyShape& shape) const;

    /// A large array, line by line. An array of one dimension is packed: lines hold the values of held positions alone, and
    /// the reader knows how many. Before version 3 every line had all positions.
    template <class T>
    class Lines {
      public:
        Lines(const ZipReader& zip, const std::string& name, NpyType type, const NpyShape& shape)
            : zip_(zip), name_(name), member_(zip, name), line_(static_cast<std::size_t>(shape.back())) {
            KH_ASSERT(npy_type_bytes(type) == sizeof(T));
            const NpyShape found = zip.read_header(member_, name, type);
            packed_ = found.size() == 1;
            zip.check(name, type, found, type, packed_ ? NpyShape{-1} : shape);
            if (packed_) n_left_ = found[0];
        }
        bool packed() const { return packed_; }
        /// The next n values of a packed array, appended to out.
        template <class Out>
        void append(std::size_t n, Out& out) {
            if (static_cast<std::int64_t>(n) > n_left_) zip_.bad(name_, "it is shorter than the run needs");
            n_left_ -= static_cast<std::int64_t>(n);
            const std::size_t have = out.size();
            out.resize(have + n);
            const std::span<std::byte> bytes = std::as_writable_bytes(std::span(out).subspan(have));
            if (member_.read(bytes) != bytes.size()) zip_.bad(name_, "it is cut off");
        }
        /// The next one; it stays until the one after.
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
        std::int64_t n_left_ = 0;  // values of a packed array
    };

  private:
    /// The shape of an array whose header comes next. Throws Error(bad_file) where it has another type.
    NpyShape read_header(Member& member, const std::string& name, NpyType type) const;

    std::filesystem::path path_;
    zip* zip_ = nullptr;
    mutable ReadBudget budget_;  // what reading, which changes nothing else, has left
};

}  // namespace keyhole
