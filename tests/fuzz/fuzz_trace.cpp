// Fuzzes a trace and its use by window and exports. Zip checksums would stop most mutations, so the input is
// a list of members and the target builds the zip. The target also reads the arrays alone.
#include "engine/base/npy.h"
#include "engine/trace/trace_file.h"

#include "tests/fuzz/structure.h"
#include "tests/fuzz/use_run.h"

#include <zip.h>

#include <span>

namespace keyhole::fuzz_trace {

namespace {

/// Builds the zip. Returns false when libzip refuses the members.
bool write_zip(const std::vector<Member>& members, const std::filesystem::path& path) {
    zip_t* zip = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
    if (zip == nullptr) std::abort();
    for (const Member& member : members) {
        zip_source_t* source = zip_source_buffer(zip, member.bytes.data(), member.bytes.size(), 0);
        const zip_int64_t index = zip_file_add(zip, member.name.c_str(), source, ZIP_FL_OVERWRITE);
        if (index < 0) {
            zip_source_free(source);
            continue;
        }
        zip_set_file_compression(zip, static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0);
    }
    if (zip_close(zip) == 0) return true;
    zip_discard(zip);
    return false;
}

}  // namespace

static int run(const std::uint8_t* data, std::size_t size) {
    static const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("keyhole-fuzz-" + std::to_string(getpid()) + ".keyhole");
    const std::string_view input = text_of(data, size);
    {
        const MemoryFile raw(input);
        expect_error_or_none([&] { read_trace(raw.path()); });
    }
    const std::vector<Member> members = members_of(input);
    for (const Member& member : members)
        expect_error_or_none([&] {
            decode_npy(std::as_bytes(std::span(member.bytes.data(), member.bytes.size())), "member");
        });
    if (!write_zip(members, path)) return 0;
    expect_error_or_none([&] { use_run(read_trace(path)); });
    std::error_code error;
    std::filesystem::remove(path, error);
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    Mutator mutator(seed, run_texts());
    return mutate_members(data, size, max_size, mutator,
                          [&](const std::string& name, const std::string& bytes) {
                              return name.ends_with(".npy") ? mutator.npy(bytes) : mutator.json(bytes);
                          });
}

static const FuzzTarget target("trace", run, mutate);

}  // namespace keyhole::fuzz_trace
