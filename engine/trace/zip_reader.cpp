#include "engine/trace/zip_reader.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"

#include <zip.h>

#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace keyhole {

namespace {

std::uint64_t size_of(const std::filesystem::path& path) {
    check_ordinary_file(path);
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (error) fail(ErrorCode::bad_file, "cannot read {}: {}", path.string(), error.message());
    return size;
}

}  // namespace

namespace {

/// Returns what libzip's codes mean for a file that is there: its own words are of programs that write.
std::string words_of(int zip_error) {
    switch (zip_error) {
        case ZIP_ER_EXISTS:
            return "two of its members have one name";
        case ZIP_ER_INVAL:
        case ZIP_ER_SEEK:
            return "its place or size is not within the file";
        case ZIP_ER_NOENT:
            return "its directory names a place outside of the file";
        default: {
            zip_error_t why;
            zip_error_init_with_code(&why, zip_error);
            std::string text = zip_error_strerror(&why);
            zip_error_fini(&why);
            return text;
        }
    }
}

/// Returns the first member that makes a zip inconsistent, and what is wrong with it; empty: none is found.
std::string faulty_member(const std::filesystem::path& path) {
    zip_t* zip = zip_open(path.c_str(), ZIP_RDONLY, nullptr);  // without the checks that it did not pass
    if (zip == nullptr) return {};
    std::string found;
    std::set<std::string_view> names;
    for (zip_int64_t i = 0, n = zip_get_num_entries(zip, 0); i < n && found.empty(); ++i) {
        const char* name = zip_get_name(zip, static_cast<zip_uint64_t>(i), ZIP_FL_ENC_RAW);
        if (name == nullptr) continue;
        if (!names.insert(name).second) {
            found = fmt::format("two members are named {}", shown_text(name));
            break;
        }
        zip_file_t* file = zip_fopen_index(zip, static_cast<zip_uint64_t>(i), 0);
        if (file == nullptr)
            found = fmt::format("member {}: {}", shown_text(name),
                                words_of(zip_error_code_zip(zip_get_error(zip))));
        else
            zip_fclose(file);
    }
    zip_discard(zip);
    return found;
}

}  // namespace

ZipReader::ZipReader(const std::filesystem::path& path, std::string_view kind)
    : path_(path), budget_(path.string(), size_of(path)) {
    int error = 0;
    zip_ = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &error);
    if (zip_) return;
    const std::string member = faulty_member(path);
    const std::string_view hint = error == ZIP_ER_NOENT ? "check the name"
                                  : error == ZIP_ER_OPEN || error == ZIP_ER_READ
                                      ? "choose a file that you may read"
                                      : "it may be cut off or of another format";
    fail(ErrorCode::bad_file, "{} cannot be opened as {}: {}; {}", path.string(), kind,
         member.empty() ? words_of(error) : member, hint);
}

ZipReader::~ZipReader() {
    if (zip_) zip_discard(zip_);
}

bool ZipReader::contains(const std::string& name) const {
    return zip_name_locate(zip_, name.c_str(), 0) >= 0;
}

std::string ZipReader::where(const std::string& name) const {
    return fmt::format("{}, member {}", path_.string(), name);
}

void ZipReader::bad(const std::string& name, std::string_view why) const {
    fail(ErrorCode::bad_file, "{} is damaged: {}", where(name), why);
}

ZipReader::Member::Member(const ZipReader& zip, std::string name) : zip_(zip), name_(std::move(name)) {
    zip_stat_t stat;
    zip_stat_init(&stat);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD;
    if (zip_stat(zip_.zip_, name_.c_str(), 0, &stat) != 0 || (stat.valid & kNeeded) != kNeeded)
        zip_.bad(name_, "it is missing");
    // Other methods reach ratios of a million; neither Keyhole nor NumPy uses them.
    if (stat.comp_method != ZIP_CM_STORE && stat.comp_method != ZIP_CM_DEFLATE)
        zip_.bad(name_, "it is compressed in another way than by deflate");
    size_ = stat.size;
    zip_.budget_.look(size_, fmt::format("its member {}", name_));
    file_ = zip_fopen(zip_.zip_, name_.c_str(), 0);
    if (!file_) zip_.bad(name_, words_of(zip_error_code_zip(zip_get_error(zip_.zip_))));
}

ZipReader::Member::~Member() {
    zip_fclose(file_);
}

std::size_t ZipReader::Member::read(std::span<std::byte> to) {
    std::size_t n_read = 0;
    while (n_read < to.size()) {
        const zip_int64_t n = zip_fread(file_, to.data() + n_read, to.size() - n_read);
        if (n < 0) zip_.bad(name_, zip_file_strerror(file_));
        if (n == 0) break;
        n_read += to_index(n);
    }
    n_read_ += n_read;
    return n_read;
}

void ZipReader::Member::end() {
    std::byte more;
    if (read({&more, 1}) != 0 || n_read_ != size_) zip_.bad(name_, "it is cut off");
}

std::vector<std::byte> ZipReader::read(const std::string& name) const {
    Member member(*this, name);
    // The declared size is unverified, and deflate can reach it with a thousandth of the bytes.
    budget_.take(member.size(), fmt::format("its member {}", name));
    std::vector<std::byte> bytes(member.size());
    if (member.read(bytes) != bytes.size()) bad(name, "it is cut off");
    member.end();
    return bytes;
}

void ZipReader::check(const std::string& name, NpyType found, const NpyShape& found_shape, NpyType type,
                      const NpyShape& shape) const {
    bool fits = found == type && found_shape.size() == shape.size();
    for (std::size_t d = 0; fits && d < shape.size(); ++d) fits = shape[d] < 0 || shape[d] == found_shape[d];
    if (!fits) bad(name, "its type or shape does not fit the run");
}

NpyArray ZipReader::array(const std::string& name, NpyType type, const NpyShape& shape) const {
    const std::vector<std::byte> bytes = read(name);
    budget_.take(2 * bytes.size(), fmt::format("its member {}", name));  // the array and its values
    NpyArray out = decode_npy(bytes, where(name));
    check(name, out.type, out.shape, type, shape);
    return out;
}

NpyShape ZipReader::read_header(Member& member, const std::string& name, NpyType type) const {
    std::vector<std::byte> bytes(10);
    bytes.resize(member.read(bytes));
    if (const std::size_t n = npy_header_bytes(bytes); n > bytes.size()) {
        bytes.resize(n);
        bytes.resize(10 + member.read(std::span(bytes).subspan(10)));
    }
    const NpyHeader header = parse_npy_header(bytes, where(name));
    check(name, header.type, header.shape, type, NpyShape(header.shape.size(), -1));
    return header.shape;
}

}  // namespace keyhole
