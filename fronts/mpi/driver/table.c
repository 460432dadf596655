/* The function tables of the driver: one for names with the prefix `weft:`, one for paths below a mount. They differ in
 * how names are parsed; an open file always uses the first (open.c).
 *
 * Collective I/O is ROMIO's two-phase algorithm, but for split files (transfer.c). */
#include "ad_weft.h"

static int feature(ADIO_File fd, int flag)
{
    (void)fd;
    switch (flag) {
    case ADIO_LOCKS:
    case ADIO_SHARED_FP:
    case ADIO_ATOMIC_MODE:
    case ADIO_SCALABLE_OPEN:
    case ADIO_UNLINK_AFTER_CLOSE:
    case ADIO_TWO_PHASE:
    case ADIO_SCALABLE_RESIZE:
#ifndef AD_WEFT_OLD_ROMIO
    case ADIO_IMMEDIATELY_VISIBLE:
#endif
        return 1;
    default: /* ADIO_DATA_SIEVING_WRITES: extent lists make it unnecessary */
        return 0;
    }
}

#define FUNCTIONS \
    .ADIOI_xxx_OpenColl = ad_weft_open_coll, \
    .ADIOI_xxx_ReadContig = ad_weft_read_contig, \
    .ADIOI_xxx_WriteContig = ad_weft_write_contig, \
    .ADIOI_xxx_ReadStridedColl = ad_weft_read_strided_coll, \
    .ADIOI_xxx_WriteStridedColl = ad_weft_write_strided_coll, \
    .ADIOI_xxx_SeekIndividual = ADIOI_GEN_SeekIndividual, \
    .ADIOI_xxx_Fcntl = ad_weft_fcntl, \
    .ADIOI_xxx_SetInfo = ad_weft_set_info, \
    .ADIOI_xxx_ReadStrided = ad_weft_read_strided, \
    .ADIOI_xxx_WriteStrided = ad_weft_write_strided, \
    .ADIOI_xxx_Close = ad_weft_close, \
    .ADIOI_xxx_IreadContig = ad_weft_iread_contig, \
    .ADIOI_xxx_IwriteContig = ad_weft_iwrite_contig, \
    .ADIOI_xxx_ReadDone = ADIOI_FAKE_IODone, \
    .ADIOI_xxx_WriteDone = ADIOI_FAKE_IODone, \
    .ADIOI_xxx_ReadComplete = ADIOI_FAKE_IOComplete, \
    .ADIOI_xxx_WriteComplete = ADIOI_FAKE_IOComplete, \
    .ADIOI_xxx_IreadStrided = ad_weft_iread_strided, \
    .ADIOI_xxx_IwriteStrided = ad_weft_iwrite_strided, \
    .ADIOI_xxx_Flush = ad_weft_flush, \
    .ADIOI_xxx_Resize = ad_weft_resize, \
    .ADIOI_xxx_Feature = feature, \
    .fsname = "weft", \
    .ADIOI_xxx_IreadStridedColl = ad_weft_iread_strided_coll, \
    .ADIOI_xxx_IwriteStridedColl = ad_weft_iwrite_strided_coll, \
    .ADIOI_xxx_SetLock = ad_weft_set_lock

struct ADIOI_Fns_struct ADIO_WEFT_operations = {
    .ADIOI_xxx_Open = ad_weft_open,
    .ADIOI_xxx_Delete = ad_weft_delete,
    FUNCTIONS,
};

struct ADIOI_Fns_struct ADIO_WEFT_MOUNT_operations = {
    .ADIOI_xxx_Open = ad_weft_open,
    .ADIOI_xxx_Delete = ad_weft_delete_mounted,
    FUNCTIONS,
};
