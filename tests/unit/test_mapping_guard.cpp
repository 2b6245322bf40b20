// Files that are cut or written to while they are mapped: reads go on, and check_mapping() reports that their
// values are not valid.
#include "engine/base/mapping_guard.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace keyhole::test_mapping_guard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBytes = std::size_t{1} << 20;

/// Expects the process to end by the signal, or by a sanitizer's report of it.
bool ended_badly(int status) {
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

class MappingGuard : public ::testing::Test {
  protected:
    MappingGuard() { write_text_file(path_, std::string(kBytes, '\1')); }

    /// Returns the sum of all bytes, read in several threads as kernels do.
    static std::size_t sum(const MappedFile& mapped) {
        std::vector<std::size_t> sums(4);
        std::vector<std::thread> threads;
        const std::span<const std::byte> bytes = mapped.bytes();
        for (std::size_t i = 0; i < sums.size(); ++i) {
            threads.emplace_back([&, i] {
                for (std::size_t at = i; at < bytes.size(); at += sums.size())
                    sums[i] += std::to_integer<std::size_t>(bytes[at]);
            });
        }
        for (std::thread& thread : threads) thread.join();
        return std::accumulate(sums.begin(), sums.end(), std::size_t{0});
    }
    static std::string fault_of(const MappedFile& mapped) {
        try {
            check_mapping(mapped.bytes().data());
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            return error.what();
        }
        return {};
    }

    reference::TempFolder folder_{"mapping"};
    fs::path path_ = folder_.path() / "weights";
};

TEST_F(MappingGuard, ACutFileReadsAsZerosAndIsNamed) {
    const MappedFile mapped(path_), other(path_);
    EXPECT_EQ(sum(mapped), kBytes);
    EXPECT_EQ(fault_of(mapped), "");
    fs::resize_file(path_, 8192);
    EXPECT_EQ(sum(mapped), 8192u);
    const std::string fault = fault_of(mapped);
    EXPECT_NE(fault.find(path_.string()), std::string::npos) << fault;
    EXPECT_NE(fault.find("was cut to 8192 of 1048576 bytes"), std::string::npos) << fault;
    EXPECT_EQ(sum(other), 8192u);  // each mapping has its own zeros
    // Lost pages stay lost when the file grows again.
    fs::resize_file(path_, kBytes);
    EXPECT_NE(fault_of(mapped), "");
}

TEST_F(MappingGuard, AFileThatIsWrittenToIsNamed) {
    const MappedFile mapped(path_);
    {
        std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
        file << "other";
    }
    // A file system's clock may be coarse, so the test sets the modification time of a later write.
    const timespec later[2] = {{0, UTIME_OMIT}, {4'000'000'000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), later, 0), 0);
    const std::string fault = fault_of(mapped);
    EXPECT_NE(fault.find("was written to"), std::string::npos) << fault;
    EXPECT_NE(fault.find(path_.string()), std::string::npos) << fault;
}

TEST_F(MappingGuard, AFileThatIsReplacedIsStillThere) {
    const MappedFile mapped(path_);
    write_text_file(path_, "another");
    EXPECT_EQ(fault_of(mapped), "");
    EXPECT_EQ(sum(mapped), kBytes);
    fs::remove(path_);
    EXPECT_EQ(fault_of(mapped), "");
}

TEST_F(MappingGuard, KnowsAddressesAsLongAsTheyAreMapped) {
    const void* inside = nullptr;
    {
        const MappedFile mapped(path_);
        inside = mapped.bytes().data() + 5000;
        EXPECT_EQ(mapping_of(inside), mapped.bytes().data());
        MappedFile moved(path_);
        const void* const begin = moved.bytes().data();
        const MappedFile to(std::move(moved));
        EXPECT_EQ(mapping_of(to.bytes().data() + 1), begin);
    }
    EXPECT_EQ(mapping_of(inside), nullptr);
    EXPECT_EQ(mapping_of(nullptr), nullptr);
    check_mapping(inside);  // not a mapping: nothing to report
}

TEST_F(MappingGuard, OtherBusErrorsEndTheProgramAsBefore) {
    const MappedFile mapped(path_);  // installs the handler
    EXPECT_EXIT(
        {
            const fs::path cut = folder_.path() / "cut";
            write_text_file(cut, std::string(kBytes, '\1'));
            std::FILE* const file = std::fopen(cut.c_str(), "rb");
            void* const data = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, ::fileno(file), 0);
            fs::resize_file(cut, 0);
            const int byte = *(static_cast<volatile char*>(data) + 5000);
            std::fprintf(stderr, "read %d\n", byte);
        },
        ended_badly, "");
    EXPECT_EXIT(::raise(SIGBUS), ended_badly, "");
}

}  // namespace
}  // namespace keyhole::test_mapping_guard
